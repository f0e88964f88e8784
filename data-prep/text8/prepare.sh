#!/usr/bin/env bash
# text8, by words or by characters, split 90M/5M/5M characters, see README.md here.
set -euo pipefail
# shellcheck source=data-prep/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib.sh"

corpus=text8
archive_mirrors=(http://mattmahoney.net/dc)
level=word threshold=''
extra_options='--level --threshold'
extra_usage='  --level LEVEL  word or char (default: word; char goes to data-bin/text8-char)
  --threshold N  words seen less than N times in train become <unk> (default: 5; not for char)'

parse_options "$@"
case $level in
  word)
    threshold=${threshold:-5}
    [[ $threshold =~ ^[0-9]+$ ]] || usage_error "--threshold needs a number, not $threshold"
    recipe="text8 --level word --threshold $threshold"
    ;;
  char)
    [[ -z $threshold ]] || usage_error "--threshold is for --level word"
    dest=${dest:-data-bin/text8-char} threshold=0 recipe='text8 --level char'
    ;;
  *) usage_error "--level is word or char, not $level" ;;
esac
begin

has text8.zip || has text8 || fetch text8.zip "${archive_mirrors[@]}" || unavailable "text8.zip (or text8)"
if has text8.zip; then extract text8.zip text8 text8; else take text8 text8; fi
size=$(wc -c <"$text_dir/text8") words=$(LC_ALL=C wc -w <"$text_dir/text8")
skip_checks || ((size == 100000000 && words == 17005207)) ||
  reject "$(source_of text8)" "text8 has $((words)) words in $((size)) characters, expected 17005207 in 100000000"

# Lines of 1,000 words or characters, so that the host can read them. A word across a border stays whole, in the
# earlier part.
python3 - "$level" "$text_dir" <<'END' || die "text8 could not be split, see above: check the space left in $text_dir"
import os
import re
import sys
from itertools import islice
from pathlib import Path

level, folder = sys.argv[1], Path(sys.argv[2])
text = (folder / "text8").read_text(encoding="ascii")
cuts = [len(text) * 90 // 100, len(text) * 95 // 100]
if level == "word":
    cuts = [cut if text[cut - 1] == " " else re.compile("[^ ]*").match(text, cut).end() for cut in cuts]
for split, start, end in zip(["train", "valid", "test"], [0, *cuts], [*cuts, len(text)]):
    part = text[start:end]
    units = (match.group() for match in re.finditer("[^ ]+", part)) if level == "word" else iter(part.replace(" ", "_"))
    with open(folder / f"{split}.txt.part", "w", encoding="ascii") as lines:
        while line := " ".join(islice(units, 1000)):
            lines.write(line + "\n")
    os.replace(folder / f"{split}.txt.part", folder / f"{split}.txt")
END

if [[ $level == word ]]; then
  for split in "${splits[@]}"; do check_counts "$split"; done
  binarise '' --thresholdsrc "$threshold"
else
  check_counts train 90090000 90000
  check_counts valid 5005000 5000
  check_counts test 5005000 5000
  binarise 27
fi
report lstm_lm_awd
