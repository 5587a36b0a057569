#!/bin/sh
# The script of docs/FAQ.md that reads a data set again and again by Python's libraries, on small
# files: it checks every sum that it reads, by read, by mapping and by Parquet.
set -eu
script=$(dirname "$0")/../../examples/python/epochs.py
PYTHONPATH=$PYTHON_PACKAGES python3 "$script" --files 3 --file-size 2MiB --epochs 2 "$PWD"
