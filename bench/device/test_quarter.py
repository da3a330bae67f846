"""Tests of the quarter: its pieces, and all of it on the fake CUDA libraries of the repository's tests.

  python3 -m unittest discover bench/device

The second half needs `lockstep` or `lockstep-under-test`, which `cargo test` has built in target/debug, or another one in
LOCKSTEP_BINARY; and the fake libraries, which lie below target/debug/build then.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import child  # noqa: E402
import collect  # noqa: E402
import parts  # noqa: E402
import summary  # noqa: E402

TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE.parents[1] / "target")) / "debug"
PROGRAMS = [os.environ.get("LOCKSTEP_BINARY", ""), TARGET / "lockstep-under-test", TARGET / "lockstep"]
PROGRAM = next((str(path) for path in PROGRAMS if path and pathlib.Path(path).exists()), None)
FAKES = sorted(TARGET.glob("build/lockstep-fake-cuda-*/out/lib/libcuda.so"), key=lambda path: path.stat().st_mtime)


class Pieces(unittest.TestCase):
    """What needs no program."""

    def follow(self, code: str, seconds: float) -> tuple[list[dict], str | None]:
        """Run a Python program with a deadline."""
        with tempfile.TemporaryDirectory() as folder:
            path, figures = pathlib.Path(folder), []
            lines = path / "lines"
            command = [sys.executable, "-c", textwrap.dedent(code), str(lines)]
            why = child.run(command, seconds, path / "log", lines, figures.append, {})
            return figures, why

    def test_figures_come_while_a_child_runs_and_a_cut_line_is_none(self):
        code = """
            import sys
            with open(sys.argv[1], "a") as file:
                file.write('{"us": 1}\\n{"us": 2}\\nnot JSON\\n{"us": 3')
        """
        self.assertEqual(self.follow(code, 20), ([{"us": 1}, {"us": 2}], None))

    def test_a_child_that_hangs_is_ended_and_its_figures_stay(self):
        code = """
            import signal, sys
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            with open(sys.argv[1], "a") as file:
                file.write('{"us": 1}\\n')
            while True:
                signal.pause()
        """
        figures, why = self.follow(code, 1)
        self.assertEqual(figures, [{"us": 1}])
        self.assertIn("deadline", why)

    def test_a_child_that_fails_says_why(self):
        figures, why = self.follow("raise SystemExit('no such GPU')", 20)
        self.assertEqual(figures, [])
        self.assertIn("ended with 1: no such GPU", why)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            why = child.run(["/no/such/program"], 1, path / "log", path / "lines", print, {})
        self.assertIn("could not be started", why)

    def test_a_prediction_that_is_missed_by_half_is_told(self):
        for measured, says in [(10, "as predicted"), (13, "near"), (16, "missed by half"), (7, "better"), (4, "better")]:
            self.assertEqual(summary.verdict(10, measured), says)
        for measured, says in [(0.9, "as predicted"), (0.7, "near"), (0.5, "missed by half"), (1.3, "better")]:
            self.assertEqual(summary.verdict(0.96, measured, share=True), says)
        self.assertEqual([summary.verdict(0, found) for found in (0, 3)], ["as predicted", "not as predicted"])

    def test_another_card_is_not_judged_but_for_its_bits(self):
        steps = {"part": "steps", "shape": "8b", "arm": "this", "requests": "1 x 1024", "device us": 9000}
        bits = {"part": "bits", "shape": "8b", "arm": "this", "different": 3}
        for card, says in [("NVIDIA H200", "missed by half"), ("NVIDIA H100 80GB HBM3", "another card"), (None, "another card")]:
            about = [{"part": "about", "name": card}] if card else []
            rows = summary.beside_predictions([*about, steps, bits], ["this"]).splitlines()
            [step] = [row for row in rows if row.endswith(says)]
            self.assertIn("5063", step)
            [row] = [row for row in rows if row.endswith("not as predicted")]
            self.assertIn("bits", row)

    def test_the_checkout_travels_with_the_bundle(self):
        with tempfile.TemporaryDirectory() as folder:
            checkout = pathlib.Path(folder)
            subprocess.run(["git", "init", "-q", folder], check=True)
            for name, size in [("tracked", 10), ("new", 200), ("ignored", 3000), ("bundle/program", 40000)]:
                (checkout / name).parent.mkdir(exist_ok=True)
                (checkout / name).write_bytes(b"x" * size)
            (checkout / ".git" / "info" / "exclude").write_text("/ignored\n")
            subprocess.run(["git", "-C", folder, "add", "tracked"], check=True)
            self.assertEqual(collect.travels(checkout, checkout / "bundle"), 210)
            (checkout / "tracked").unlink()
            self.assertEqual(collect.travels(checkout, checkout / "bundle"), 200)

    def test_medians_are_of_one_arm_and_one_figure(self):
        line = {"shape": "8b", "kernel": "k", "size": "1", "arm": "this", "us": 3}
        others = [line | {"us": 1}, line | {"us": 9}, line | {"arm": "baseline", "us": 70}, line | {"size": "2"}]
        found = summary.medians([line, *others], "this", "us")
        self.assertEqual(found, {("8b", "k", "1"): 3, ("8b", "k", "2"): 3})

    def test_every_prediction_has_a_part_that_measures_it(self):
        measured = {(part.shape, name) for part in parts.PARTS for name in part.name.split(",")}
        of = {"product": "products", "attention": "attention", "choose,": "choosing", "empty,": "latency"}
        of |= {"reading": "latency", "attention_merge": "attention", "experts": "experts", "experts,": "experts"}
        of |= {"recurrent,": "recurrent"}
        for figure in summary.predictions()["figures"]:
            name = figure.get("table") or of.get(figure["kernel"].split()[0], "elementwise")
            self.assertIn((figure["shape"], name), measured, figure)

    def test_every_way_to_overlap_is_measured_and_predicted(self):
        switched = {part.shape for part in parts.PARTS if part.switched}
        self.assertEqual(switched, {"8b", "1b"})
        predicted = {(of["shape"], of["arm"]) for of in summary.predictions()["figures"] if "arm" in of}
        self.assertEqual(predicted, {(shape, name) for shape in switched for name in parts.SWITCHES})

    def test_a_prediction_of_an_arm_is_judged_by_that_arm(self):
        about = {"part": "about", "name": "NVIDIA H200"}
        step = {"part": "steps", "shape": "8b", "requests": "1 x 1024"}
        lines = [about, step | {"arm": "this", "device us": 9000}, step | {"arm": "no overlap", "device us": 4700}]
        rows = summary.beside_predictions(lines, ["no overlap", "this"]).splitlines()
        [row] = [row for row in rows if "steps, no overlap" in row and "4716" in row]
        self.assertTrue(row.endswith("as predicted"), row)
        [row] = [row for row in rows if "5063" in row]
        self.assertTrue(row.endswith("missed by half"), row)

    def test_all_parts_have_deadlines_that_fit_the_time(self):
        # Each takes a fraction of its deadline; the most valuable ones fit even at their deadlines.
        first = [part.seconds * part.rounds for part in parts.PARTS[:4]]
        self.assertLessEqual(sum(first), 8 * 60)


@unittest.skipUnless(PROGRAM and FAKES, "needs a built program and the fake CUDA libraries")
class Rehearsal(unittest.TestCase):
    """All of it, over a tiny model on a GPU that does not exist."""

    def quarter(self, out: pathlib.Path, *options: str, program: str | None = None) -> tuple[int, list[dict], str]:
        """Run it; its exit code, its lines, its summary."""
        folder = FAKES[-1].parent
        command = [sys.executable, HERE / "quarter", "run", "--rehearse", "--out", out, "--program", program or PROGRAM]
        environment = os.environ | {"LD_LIBRARY_PATH": str(folder)}
        done = subprocess.run([*map(str, command), *options], env=environment, capture_output=True, text=True, timeout=900)
        self.assertTrue((out / "summary.txt").exists(), done.stderr)
        lines = child.objects((out / "figures.jsonl").read_text())
        return done.returncode, lines, (out / "summary.txt").read_text()

    def test_every_part_is_measured_by_each_program_in_turn(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder)
            options = ["--baseline", PROGRAM, "--variant", "pages --page-size 8", "--minutes", "14"]
            code, lines, text = self.quarter(out, *options)
        self.assertEqual([line for line in lines if "failed" in line], [])
        self.assertEqual(code, 0)
        for part in parts.REHEARSAL:
            ended = [line for line in lines if line.get("ended") and line["part"] == part.name]
            arms = ["this", *parts.SWITCHES] if part.switched else ["baseline", "this", "pages"]
            self.assertEqual([line["arm"] for line in ended], arms, part)
        for arm in ("baseline", "this", "pages"):
            kernels = {line["kernel"] for line in lines if line.get("arm") == arm and "kernel" in line}
            for kernel in ("empty, behind another", "rms_norm", "attend of decode", "product qkv", "choose, greedy"):
                self.assertIn(kernel, kernels)
            for kernel in ("experts", "experts, router", "experts, routes", "experts, products", "experts, sums"):
                self.assertIn(kernel, kernels)
        for arm in ("baseline", "this", "pages", *parts.SWITCHES):
            steps = [line for line in lines if line.get("arm") == arm and "device us" in line]
            self.assertTrue(all(line["device us"] >= 0 for line in steps) and steps)
        bits = [line for line in lines if line["part"] == "bits"]
        self.assertTrue(bits and all("wgmma" in line["not compared"] for line in bits))
        for title in ("Predicted and measured", "after each step of work", "Beside a baseline"):
            self.assertIn(title, text)
        self.assertRegex(text, r"tiny +rms_norm, cached +80 x 64 +baseline")

    def test_a_folder_that_was_collected_runs_by_itself(self):
        with tempfile.TemporaryDirectory() as folder:
            bundle, out = pathlib.Path(folder) / "bundle", pathlib.Path(folder) / "out"
            build = [sys.executable, HERE / "quarter", "build", "--out", bundle, "--program", PROGRAM]
            done = subprocess.run(list(map(str, build)), capture_output=True, text=True, timeout=300)
            self.assertIn("MiB  in all, of 64", done.stdout)
            run = [sys.executable, bundle / "quarter", "run", "--rehearse", "--only", "latency", "--out", out]
            environment = os.environ | {"LD_LIBRARY_PATH": str(FAKES[-1].parent)}
            done = subprocess.run(list(map(str, run)), env=environment, capture_output=True, text=True, timeout=300, cwd="/")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            lines = child.objects((out / "figures.jsonl").read_text())
        self.assertTrue([line for line in lines if line.get("kernel") == "empty, behind another"])

    def test_a_machine_without_libraries_is_told_once(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "out"
            command = [sys.executable, HERE / "quarter", "run", "--rehearse", "--out", out, "--program", PROGRAM]
            environment = os.environ | {"LD_LIBRARY_PATH": "/nowhere"}
            done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, timeout=100)
            self.assertEqual(done.returncode, 1, done.stderr)
            names = sorted(path.name for path in out.iterdir())
            lines = child.objects((out / "figures.jsonl").read_text())
        self.assertEqual(names, ["figures.jsonl", "logs.tar.gz", "summary.txt"])
        failed = [line for line in lines if "failed" in line]
        self.assertEqual([line["part"] for line in failed], ["start"])
        self.assertIn("libcuda", failed[0]["failed"])

    def test_a_part_that_hangs_and_one_that_fails_do_not_end_the_others(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder)
            wrapped = out / "lockstep"
            wrapped.write_text(
                f"""#!/bin/sh
                case "$*" in
                    *--peak*"--repeat 1") exec {PROGRAM} "$@";;
                    *"--only latency"*) exec sleep 1000;;
                    *"--only elementwise"*) echo "no such kernel" >&2; exit 3;;
                    *) exec {PROGRAM} "$@";;
                esac
                """
            )
            wrapped.chmod(0o755)
            names = ["elementwise", "choosing", "latency"]
            code, lines, text = self.quarter(out, "--minutes", "1.5", "--only", *names, program=str(wrapped))
        self.assertEqual(code, 1)
        why = {line["part"]: line["failed"] for line in lines if "failed" in line}
        self.assertIn("deadline", why["latency,bits"])
        self.assertIn("no such kernel", why["elementwise"])
        self.assertNotIn("choosing", why)
        self.assertTrue([line for line in lines if line.get("kernel") == "choose, greedy"])
        self.assertIn("Parts that did not end well", text)
        self.assertIn("no such kernel", text)


if __name__ == "__main__":
    unittest.main()
