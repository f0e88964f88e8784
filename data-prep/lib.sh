# shellcheck shell=bash
# What the prepare scripts share. A script sets `corpus`, then calls parse_options, begin, a way to get the
# text, check_*, binarise and report, in this order.
#
# EXPECTED_COUNTS=skip in the environment switches off the checks that only the real corpus passes (checksums,
# sizes, token counts, vocabulary), so that a script can be tried on a small corpus in the same layout.

splits=(train valid test)
from='' dest='' work='' workers=''
mirrors=() archive_mirrors=() text_mirrors=()
extra_options='' extra_usage=''
scratch=() counted=()
recipe='' origin='' source_dir='' text_dir=''

note() { printf '%s: %s\n' "${corpus:-prepare}" "$*" >&2; }

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

usage() {
  cat <<END
usage: prepare.sh [--from DIR] [--mirror URL]... [--dest DIR] [--work DIR] [--workers N]${extra_options:+ [...]}
Download, check and binarise the corpus ${corpus}.
  --from DIR     take the archive or the plain text files from DIR; download nothing
  --mirror URL   folder to download from, instead of the built-in mirrors; may be repeated
  --dest DIR     where the binarised corpus goes (default: data-bin/${corpus})
  --work DIR     where downloads and extracted text go (default: downloads/${corpus})
  --workers N    processes that binarise (default: all cores, at most 8)
${extra_usage:+$extra_usage
}  --help         this text
EXPECTED_COUNTS=skip in the environment turns off the checks that only the real corpus passes.
END
}

usage_error() {
  printf 'error: %s\n' "$*" >&2
  usage >&2
  exit 2
}

# `--name value` sets the variable `name`; the names in extra_options are a script's own.
parse_options() {
  while (($#)); do
    case $1 in
      --help | -h)
        usage
        exit 0
        ;;
      --from | --mirror | --dest | --work | --workers) ;;
      *) [[ $1 == --* && " $extra_options " == *" $1 "* ]] || usage_error "unknown option: $1" ;;
    esac
    [[ -n ${2:-} && $2 != --* ]] || usage_error "$1 needs a value"
    case $1 in
      --mirror) mirrors+=("$2") ;;
      *) printf -v "${1#--}" '%s' "$2" ;;
    esac
    shift 2
  done
  workers=${workers:-$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)}
  [[ $workers =~ ^[1-9][0-9]*$ ]] || usage_error "--workers needs a positive number, not $workers"
  ((workers <= 8)) || workers=8
  [[ ${EXPECTED_COUNTS:=check} == check || $EXPECTED_COUNTS == skip ]] ||
    usage_error "EXPECTED_COUNTS is check or skip, not $EXPECTED_COUNTS"
}

skip_checks() { [[ $EXPECTED_COUNTS == skip ]]; }

require() {
  command -v "$1" >/dev/null || die "$1 is not on PATH: $2"
}

remove_scratch() {
  ((${#scratch[@]} == 0)) || rm -rf -- "${scratch[@]}"
}
trap remove_scratch EXIT

# Settles the directories; ends the script where the destination is already complete.
begin() {
  dest=${dest:-data-bin/$corpus} work=${work:-downloads/$corpus} recipe=${recipe:-$corpus}
  dest=${dest%/} work=${work%/}
  if skip_checks; then
    recipe+=", not checked"
    note "warning: EXPECTED_COUNTS=skip: checksums, token counts and vocabulary are not checked"
  fi
  stop_if_finished
  [[ -z $from || -d $from ]] || die "--from $from is not a directory: pass the folder that holds the files"
  require fairseq-preprocess "activate the environment that fairseq is installed in"
  require python3 "install Python 3"
  text_dir=$work/text source_dir=${from:-$work}
  mkdir -p -- "$text_dir" "$(dirname -- "$dest")" || die "cannot create the folders of $work and $dest"
  if ((${#mirrors[@]})); then
    archive_mirrors=("${mirrors[@]}") text_mirrors=("${mirrors[@]}")
  fi
}

stop_if_finished() {
  local found split foreign
  [[ -e $dest ]] || return 0
  [[ -d $dest ]] || die "$dest is not a directory: pass another --dest"
  if [[ -f $dest/prepared.txt ]]; then
    found=$(<"$dest/prepared.txt")
    [[ $found == "$recipe" || "$found, not checked" == "$recipe" ]] ||
      die "$dest already holds '$found', not '$recipe': delete it or pass another --dest"
    note "$dest is already complete; delete it to prepare it again"
    exit 0
  fi
  foreign=$(find "$dest" -mindepth 1 ! -name dict.txt ! -name '*.bin' ! -name '*.idx' ! -name preprocess.log)
  [[ -z $foreign ]] || die "$dest holds files that are not a binarised corpus: pass another --dest"
  for split in "${splits[@]}"; do
    if [[ ! -f $dest/$split.bin || ! -f $dest/$split.idx || ! -f $dest/dict.txt ]]; then
      note "$dest is incomplete and will be made again"
      return 0
    fi
  done
  note "$dest already holds a binarised corpus that this script did not write; left alone, not checked"
  exit 0
}

# has FILE...: are all of them in the folder of sources?
has() {
  local name
  for name in "$@"; do
    [[ -f $source_dir/$name ]] || return 1
  done
}

# fetch FILE MIRROR...: FILE into the work folder from the first mirror that gives a sound one.
fetch() {
  local file=$1 part=$work/$1.part mirror url progress=(--silent --show-error)
  shift
  [[ -z $from ]] || return 1
  require curl "install it, or pass the files with --from DIR"
  require_unpacker "$file"
  [[ ! -t 2 ]] || progress=(--progress-bar)
  scratch+=("$part")
  for mirror in "$@"; do
    mirror=${mirror%/"$file"}
    url=${mirror%/}/$file
    rm -f -- "$part"
    note "downloading $url"
    if ! curl "${progress[@]}" --fail --location --retry 2 --retry-delay 1 --connect-timeout 20 \
      --speed-limit 1000 --speed-time 60 --output "$part" -- "$url"; then
      note "that mirror failed"
    elif [[ ! -f $part ]] || ! list_members "$part" >/dev/null; then
      note "that mirror gave a damaged file"
    else
      mv -f -- "$part" "$work/$file" || die "cannot write $work/$file"
      return 0
    fi
  done
  rm -f -- "$part"
  return 1
}

# No way was left to get the files named.
unavailable() {
  if [[ -n $from ]]; then
    die "$from has no $*: put that there, or leave out --from to download"
  fi
  die "no mirror worked: download $* by hand and run again with --from DIR, the folder it is in"
}

require_unpacker() {
  [[ $1 != *.zip ]] || require unzip "install it, or unpack $1 by hand and pass the folder with --from"
}

# Text files have no members; they pass.
list_members() {
  case ${1%.part} in
    *.zip) unzip -Z1 "$1" 2>/dev/null ;;
    *.tgz) tar -tzf "$1" 2>/dev/null ;;
  esac
}

# extract ARCHIVE MEMBER FILE: one member of an archive among the sources, streamed into the text folder.
extract() {
  local archive=$source_dir/$1 member=$2 target=$text_dir/$3 members
  require_unpacker "$archive"
  members=$(list_members "$archive") || reject "$archive" "$archive is damaged and cannot be unpacked"
  grep -qxF -- "$member" <<<"$members" || member=./$member
  grep -qxF -- "$member" <<<"$members" || reject "$archive" "$archive has no member ${member#./}"
  scratch+=("$target.part")
  case $archive in
    *.zip) unzip -p "$archive" "$member" ;;
    *.tgz) tar -xzOf "$archive" -- "$member" ;;
  esac >"$target.part" 2>/dev/null ||
    reject "$archive" "$member cannot be unpacked from $archive (damaged archive or full disk)"
  mv -f -- "$target.part" "$target"
  origin=$archive
}

# take FILE NAME: a plain text file among the sources, linked into the text folder.
take() {
  local file target=$text_dir/$2
  file=$(cd -- "$source_dir" && pwd)/$1
  [[ $file -ef $target ]] || ln -sfn -- "$file" "$target"
}

# obtain_texts ARCHIVE PATTERN: train.txt, valid.txt and test.txt of the text folder. PATTERN is the path of a
# member with * for the split; its base name is also accepted as a plain file.
obtain_texts() {
  local archive=$1 pattern=$2 names=() plain=() split name
  for split in "${splits[@]}"; do
    name=${pattern//\*/$split}
    names+=("${name##*/}") plain+=("$split.txt")
  done
  if ! has "$archive" && ! has "${names[@]}" && ! has "${plain[@]}"; then
    fetch "$archive" "${archive_mirrors[@]}" || fetch_texts "${names[@]}" ||
      unavailable "$archive (or ${names[*]}, or ${plain[*]})"
  fi
  for split in "${splits[@]}"; do
    name=${pattern//\*/$split}
    if has "$archive"; then
      extract "$archive" "$name" "$split.txt"
    elif has "${names[@]}"; then
      take "${name##*/}" "$split.txt"
    else
      take "$split.txt" "$split.txt"
    fi
  done
}

fetch_texts() {
  local name
  ((${#text_mirrors[@]})) || return 1
  for name in "$@"; do
    [[ -f $work/$name ]] || fetch "$name" "${text_mirrors[@]}" || return 1
  done
}

# reject FILE PROBLEM
reject() { die "$2: delete $1 and run again, or pass the right files with --from DIR"; }

# Where FILE of the text folder came from.
source_of() { readlink -- "$text_dir/$1" || echo "${origin:-$text_dir/$1}"; }

sha256() {
  if command -v sha256sum >/dev/null; then sha256sum <"$1"; else shasum -a 256 <"$1"; fi | cut -d ' ' -f 1
}

# check_sha256 SPLIT EXPECTED
check_sha256() {
  local file=$1.txt got where
  skip_checks && return
  got=$(sha256 "$text_dir/$file")
  where=$(source_of "$file")
  [[ $got == "$2" ]] || reject "$where" "$file from $where has SHA-256 $got, expected $2"
}

# check_counts SPLIT [TOKENS [LINES]]: counts as the host does, each line with one end mark, and prints it.
check_counts() {
  local file=$1.txt lines tokens counts where
  where=$(source_of "$file")
  counts=$(python3 -c '
import sys
lines = tokens = 0
with open(sys.argv[1], encoding="utf-8") as text:
    for line in text:
        lines += 1
        tokens += len(line.split()) + 1
print(lines, tokens)' "$text_dir/$file" 2>/dev/null) || reject "$where" "$file from $where is not UTF-8 text"
  read -r lines tokens <<<"$counts"
  ((lines > 0)) || reject "$where" "$file from $where is empty"
  printf '%-5s %9d lines %10d tokens (with one end mark a line)\n' "$1" "$lines" "$tokens"
  counted+=("$file: $lines sents, $tokens tokens")
  skip_checks && return
  [[ $tokens == "${2:-$tokens}" && $lines == "${3:-$lines}" ]] ||
    reject "$where" "$file from $where has $tokens tokens in $lines lines, expected $2${3:+ in $3 lines}"
}

# binarise ROWS [FLAG...]: the destination, with ROWS words in dict.txt (any number if empty). FLAGs go to
# fairseq-preprocess.
binarise() {
  local rows=$1 partial=$dest.partial log=$work/preprocess.log got expected
  shift
  rm -rf -- "$partial"
  scratch+=("$partial")
  mkdir -- "$partial" || die "cannot create $partial: pass another --dest"
  local target
  target=$(cd -- "$partial" && pwd)
  note "binarising with $workers processes, log in $log"
  # From inside the text folder, because the host splits --validpref at commas.
  (cd -- "$text_dir" && LOGLEVEL=INFO fairseq-preprocess --only-source --padding-factor 1 --workers "$workers" \
    --trainpref train.txt --validpref valid.txt --testpref test.txt --destdir "$target" "$@") >"$log" 2>&1 ||
    die "fairseq-preprocess failed, see $log ($(tail -n 1 -- "$log"))"
  for expected in "${counted[@]}"; do
    grep -qF -- " $expected," "$partial/preprocess.log" ||
      die "fairseq-preprocess did not binarise '$expected', see $log and report this"
  done
  got=$(wc -l <"$partial/dict.txt")
  got=${got//[[:space:]]/}
  if [[ -n $rows && $got != "$rows" ]] && ! skip_checks; then
    reject "$(source_of train.txt)" "the vocabulary has $got words, expected $rows"
  fi
  echo "dict.txt $got words, besides the host's own <s>, <pad>, </s> and <unk>"
  echo "$recipe" >"$partial/prepared.txt"
  rm -rf -- "$dest"
  mv -- "$partial" "$dest"
}

# report ARCH [FLAG...]: where the result lies and what to run next.
report() {
  local plugins save_dir
  plugins=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)/fairseq_plugins
  [[ $plugins != "$PWD/fairseq_plugins" ]] || plugins=fairseq_plugins
  save_dir=checkpoints/$(basename -- "$dest")
  printf 'The binarised corpus is in %s. Next:\n' "$dest"
  printf '  fairseq-train %q --user-dir %q --task stateful_lm --arch %s' "$dest" "$plugins" "$1"
  shift
  printf ' %q' --tokens-per-sample 70 --batch-size 20 --criterion regularized_cross_entropy \
    --optimizer nt_asgd --lr 20 --clip-norm 0.25 --save-dir "$save_dir" "$@"
  printf '\n'
}
