#!/usr/bin/env python3
"""Average the weights of two targets: what a further stage of training taught stays, and what it blurred comes back.

python average.py --earlier ../lockstep-demo-7m --later tools --share 0.88 --out average
"""

import argparse
import json
import pathlib

from model import load, save


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--earlier", type=pathlib.Path, required=True)
    parser.add_argument("--later", type=pathlib.Path, required=True)
    parser.add_argument("--share", type=float, default=0.88, help="of the later weights")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    earlier, later = load(arguments.earlier).state_dict(), load(arguments.later)
    share = arguments.share
    later.load_state_dict({name: (1 - share) * earlier[name] + share * w for name, w in later.state_dict().items()})
    save(later, json.loads((arguments.later / "config.json").read_text()), arguments.out)


if __name__ == "__main__":
    main()
