use super::{REASONING_FORMATS, ReasoningFormat, Turn};
use crate::answer::tests::{Answer, Case, check};

#[test]
fn reasoning_is_told_from_the_answer() {
    use Turn::{Answer as Text, Open, Reasoning};
    for (name, turn, output, reasoning, text) in [
        (
            "qwen3",
            Open,
            "<think>\nHm.\n</think>\n\n42\n",
            "Hm.",
            "42\n",
        ),
        ("qwen3", Reasoning, "Hm. </think>42", "Hm.", "42"),
        ("qwen3", Reasoning, "\nHm.\n\nSo.", "Hm.\n\nSo.", ""),
        ("qwen3", Reasoning, "<think>Hm.</think>42", "Hm.", "42"),
        (
            "qwen3",
            Reasoning,
            "a <think> b</think>42",
            "a <think> b",
            "42",
        ),
        ("qwen3", Open, "\n<think></think>42", "", "42"),
        ("qwen3", Open, "\n 42 ", "", "\n 42 "),
        (
            "qwen3",
            Open,
            "No <think>thought</think>",
            "",
            "No <think>thought</think>",
        ),
        ("qwen3", Text, "<think>a</think>", "", "<think>a</think>"),
        ("qwen3", Open, "<thi", "", "<thi"),
        ("qwen3", Reasoning, "a </thin", "a </thin", ""),
        ("mistral", Open, "[THINK]Hm.[/THINK]42", "Hm.", "42"),
        ("kimi", Open, "◁think▷Hm.◁/think▷42", "Hm.", "42"),
    ] {
        // Special tokens would be left out where they are text.
        let has_marks = [reasoning, text].iter().any(|part| part.contains("think>"));
        check(&Case {
            reasoning: Some((name, turn)),
            output,
            expected: Answer {
                reasoning: reasoning.to_owned(),
                ..Answer::new(text, &[])
            },
            only: has_marks.then_some(false),
            ..Case::default()
        });
    }
}

#[test]
fn the_prompts_end_says_how_the_turn_begins() {
    let format = ReasoningFormat::named("deepseek-v3").expect("known");
    let asked = "<|user|>What does <think> mean?";
    for (end, turn) in [
        ("<|assistant|>", Turn::Open),
        ("<|assistant|><think>\n", Turn::Reasoning),
        ("<|assistant|><think>\n\n</think>\n\n", Turn::Answer),
    ] {
        assert_eq!(format.turn(&format!("{asked}{end}")), turn, "{end}");
    }
    let always = ReasoningFormat::named("deepseek-r1").expect("known");
    assert_eq!(always.turn("<|assistant|>"), Turn::Reasoning);
    assert_eq!(always.turn("<think>\n\n</think>\n\n"), Turn::Answer);
    for (text, turn) in [
        ("<think>Hm", Turn::Reasoning),
        ("<think>Hm</think>4", Turn::Answer),
        ("4", Turn::Answer),
    ] {
        assert_eq!(format.continued(text), turn, "{text}");
    }
}

#[test]
fn templates_and_vocabularies_show_their_marks() {
    let of = |template: &str, tokens: &[&str]| {
        let format = ReasoningFormat::of_model(template, |token| tokens.contains(&token));
        format.map(|format| format.names[0])
    };
    assert_eq!(of("…</think>…", &[]), Some("qwen3"));
    assert_eq!(of("", &["</think>"]), Some("qwen3"));
    assert_eq!(of("", &["[/THINK]"]), Some("mistral"));
    assert_eq!(of("<|im_start|>", &["<think"]), None);
    let names = REASONING_FORMATS.iter().flat_map(|format| format.names);
    for name in names {
        assert!(ReasoningFormat::named(name).is_some(), "{name}");
    }
}
