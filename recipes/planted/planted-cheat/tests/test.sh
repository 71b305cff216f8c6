#!/bin/sh
exec python3 -I -S -B /tests/guard.py
