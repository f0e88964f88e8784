#!/usr/bin/env bash
# Multi30k, task 1: captions in English, German and French, see README.md here.
set -euo pipefail
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../corpus.sh"
