#!/bin/sh
# Makes a copy of the demo model whose chat template shows tools and reasoning.
#
#   tests/clients/tools_folder.sh FOLDER
set -eu

here=$(dirname "$0")
mkdir -p "$1"
cp "$here"/../../models/lockstep-demo-7m/* "$1"
cp "$here/tools_template.jinja" "$1/chat_template.jinja"
