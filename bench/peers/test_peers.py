#!/usr/bin/env python3
"""Tests of what needs no engine: python -m unittest test_peers.py, in this folder."""

import argparse
import json
import pathlib
import subprocess
import tempfile
import unittest

import children
import device
import drawn
import shapes
import engines
import speculate
import tables


class Tables(unittest.TestCase):
    """Medians, pairs and the best peer."""

    def samples(self) -> list[dict]:
        rates = {"lockstep:bf16": [30, 20, 10], "llamacpp:bf16": [10, 10, 20], "transformers:bf16": [5, 16, 16]}
        return [
            {"phase": "decode", "size": 8, "engine": engine, "repetition": repetition, "rate": rate, "raw": {}}
            for engine, values in rates.items()
            for repetition, rate in enumerate(values)
        ]

    def test_ratios_pair_a_repetition_with_itself(self):
        self.assertEqual(tables.ratios({0: 30, 1: 20, 2: 9}, {0: 10, 2: 9}), [3, 1])

    def test_the_best_peer_has_the_highest_median(self):
        by = tables.rates(self.samples())[("decode", 8)]
        self.assertEqual(tables.best_peer(by, ["llamacpp:bf16", "transformers:bf16"]), "transformers:bf16")
        self.assertIsNone(tables.best_peer(by, ["llamacpp:q8_0"]))

    def test_a_table_shows_medians_and_ratios(self):
        text = tables.class_table("16-bit", engines.CLASSES["16-bit"], self.samples())
        line = text.splitlines()[-1]
        self.assertIn("| decode b8 | 20.0 (10.0–30.0) | 10.0 (10.0–20.0) | 16.0 (5.0–16.0) |", line)
        self.assertIn("| transformers:bf16 | 1.25 (0.62–6.00) | 2.00 (0.50–3.00) | 1.25 (0.62–6.00) |", line)

    def test_a_table_shows_what_was_reached(self):
        samples = self.samples()
        for sample, part in zip(samples[:3], (0.5, 0.91, 0.95), strict=True):
            sample["raw"] = {"of bandwidth": part, "of compute": None}
        text = tables.class_table("16-bit", engines.CLASSES["16-bit"], samples)
        self.assertTrue(text.splitlines()[-1].endswith("| 91% | – |"), text)


class Children(unittest.TestCase):
    """Processes end with all they started."""

    def test_a_child_leaves_its_output_and_its_cost(self):
        ended = children.run(["sh", "-c", "echo out; echo err >&2"], 20)
        self.assertEqual((ended.stdout, ended.stderr), ("out\n", "err\n"))
        self.assertGreater(ended.peak_rss, 100_000)

    def test_a_failure_shows_the_last_lines(self):
        with self.assertRaisesRegex(children.Failed, "(?s)ended with 3.*why"):
            children.run(["sh", "-c", "echo why >&2; exit 3"], 20)

    def test_what_takes_too_long_ends_with_its_children(self):
        with self.assertRaisesRegex(children.Failed, "took more than"):
            children.run(["sh", "-c", "sleep 1000 & echo $! ; wait"], 0.2)

    def test_a_session_is_known_by_its_members(self):
        child = subprocess.Popen(["sh", "-c", "sleep 1000 & wait"], start_new_session=True)
        with child:
            while len(children.members(child.pid)) < 2:
                pass
            children.kill(child.pid)
            children.wait_until_gone(child.pid)
        self.assertEqual(children.members(child.pid), [])


class Engines(unittest.TestCase):
    """Records of the engines, and what makes them unfit."""

    def test_groups_are_read(self):
        self.assertEqual(engines.Group.parse("decode:1,8"), engines.Group("decode", (1, 8)))
        for wrong in ("decode", "decode:", "both:1", "decode:x"):
            with self.assertRaises(ValueError, msg=wrong):
                engines.Group.parse(wrong)

    def test_a_record_of_other_work_is_refused(self):
        record = {"n_threads": 2, "n_gen": 0, "n_prompt": 512, "avg_ts": 99.5}
        self.assertEqual(engines.llama_prefill(record).rate, 99.5)
        with self.assertRaises(engines.Unequal):
            engines.llama_prefill(record | {"n_threads": 4})


class Drawn(unittest.TestCase):
    """Shapes of models with random weights."""

    def test_whole_shapes_have_as_many_parameters_as_the_published_models(self):
        whole = {"num_hidden_layers": 48, "num_experts": 128, "vocab_size": 151_936}
        qwen = drawn.tensors(shapes.MOE_1B | whole)
        self.assertEqual(drawn.parameters(qwen), 30_532_122_624)
        oss = drawn.tensors(shapes.GPT_OSS | {"num_hidden_layers": 24, "layer_types": [""] * 24, "vocab_size": 201_088})
        self.assertEqual(drawn.parameters(oss), 20_914_757_184)
        self.assertEqual(drawn.parameters(drawn.tensors(shapes.GEMMA3_1B)), 999_885_952)

    def test_names_of_tensors_occur_once(self):
        for config in shapes.ALL.values():
            names = [tensor.name for tensor in drawn.tensors(config)]
            self.assertEqual(len(names), len(set(names)))

    def test_a_tokenizer_is_filled_up_to_the_vocabulary(self):
        small = {"added_tokens": [{"id": 2}], "model": {"vocab": {"a": 0, "c": 4}}}
        with tempfile.TemporaryDirectory() as folder:
            source, out = pathlib.Path(folder) / "source", pathlib.Path(folder) / "out"
            source.write_text(json.dumps(small))
            drawn.fill_tokenizer(source, out, 6)
            filled = json.loads(out.read_text())["model"]["vocab"]
        self.assertEqual({number: token for token, number in filled.items() if number in (0, 4)}, {0: "a", 4: "c"})
        self.assertEqual(sorted(filled.values()), [0, 1, 3, 4, 5])


class Speculation(unittest.TestCase):
    """The table of speculation beside none."""

    def test_each_engine_is_held_against_itself_and_the_best_against_the_best(self):
        rates = {("lockstep", 0): [10, 20], ("lockstep", 3): [30, 40]}
        rates |= {("llamacpp", 0): [10, 10], ("llamacpp", 3): [5, 5]}
        samples = [
            {"engine": engine, "domain": "facts", "steps": steps, "repetition": repetition, "rate": rate}
            for (engine, steps), values in rates.items()
            for repetition, rate in enumerate(values)
        ]
        record = {"title": "Title", "samples": samples, "failures": [{"what": "llamacpp, 5 drafts"}]}
        arguments = argparse.Namespace(steps=[3, 5], repeat=2, per_domain=1, max_tokens=8)
        lines = speculate.markdown(arguments, record).splitlines()
        ours = "| facts | lockstep | 15.0 (10.0–20.0) | 35.0 (30.0–40.0) | – | 2.50 (2.00–3.00) | – |"
        self.assertTrue(any(line.startswith(ours) for line in lines), lines)
        theirs = "| facts | llamacpp | 10.0 (10.0–10.0) | 5.0 (5.0–5.0) | – | 0.50 (0.50–0.50) | – | 3.50 (3.00–4.00) |"
        self.assertIn(theirs, lines)
        self.assertEqual(lines[-1], "Failed: llamacpp, 5 drafts.")


class OnDevice(unittest.TestCase):
    """Shapes and figures of device.py, which needs a GPU for the rest."""

    CONFIG = {
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
    }

    def test_products_are_those_of_a_layer_and_the_head(self):
        products = {name: (outputs, inputs) for name, outputs, inputs in device.shapes(self.CONFIG)}
        self.assertEqual(products["qkv"], (6144, 4096))
        self.assertEqual(products["gate_up"], (28672, 4096))
        self.assertEqual(products["down"], (4096, 14336))
        self.assertEqual(products["lm_head"], (128256, 4096))

    def test_data_used_in_turn_fill_the_working_set(self):
        self.assertEqual([device.turns(size, 1000) for size in (1, 100, 900, 5000)], [64, 10, 2, 2])
        self.assertEqual(device.requests("64x1024,1x16"), [(64, 1024), (1, 16)])

    def test_a_line_holds_rates_beside_the_ceilings(self):
        found = device.line("k", "s", [3.0, 1.0, 2.0], (4e9, 8e12), {"copy": 4e9, "product": 8e12})
        self.assertEqual((found["us"], found["min us"], found["max us"]), (2e6, 1e6, 3e6))
        self.assertEqual((found["GB/s"], found["TFLOP/s"]), (2, 4))
        self.assertEqual((found["of copy"], found["of product"]), (0.5, 0.5))


if __name__ == "__main__":
    unittest.main()
