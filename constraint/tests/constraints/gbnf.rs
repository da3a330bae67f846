//! Grammars in GBNF.

use lockstep_constraint::lark;
use lockstep_types::constraint::{Constraint, ConstraintKind};

use crate::support::accepts;

/// llama.cpp's grammar of JSON, but for its name.
const JSON: &str = r##"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"##;

#[test]
fn languages_are_those_of_their_grammars() {
    let good = |grammar: &str, text: &str| {
        let grammar = lark(grammar).expect(grammar);
        accepts(&Constraint::new(ConstraintKind::Lark, grammar), text)
    };
    let cases: &[(&str, &[&str], &[&str])] = &[
        (
            "root ::= \"yes\" | \"no\"",
            &["yes", "no"],
            &["ye", "yesno", ""],
        ),
        // Terminals of a regular grammar may end early.
        (
            "root ::= [a-z]+ \"x\" y\ny ::= [0-9]{2}",
            &["ax12", "xx12"],
            &["a12", "x12", "ax1"],
        ),
        (
            "root ::= 'a'? . [^b\\]-]\n",
            &["xa", "axa", "aac"],
            &["axb", "ax]", "ax-", "a"],
        ),
        (
            "# c\nroot ::= (\"a\" |\n \"b\"\n | \"\")\n",
            &["a", "b", ""],
            &["ab"],
        ),
        (
            "root ::= \"(\" root \")\" | \"\\x41\\u00e9\"",
            &["Aé", "((Aé))"],
            &["(Aé", "()"],
        ),
        (
            "root ::= item{2,3}\nitem ::= \"-\" root2 \";\"\nroot2 ::= [a-c] | \"<\" root2 \">\"",
            &["-a;-<b>;", "-a;-b;-c;"],
            &["-a;", "-a;-a;-a;-a;", "-d;-a;"],
        ),
        (
            JSON,
            &[
                "{}",
                "{\"a\": [1, -2.5e3, true], \"b\": {\"c\": \"x\\n\\u00e9y\"}}",
                "{ }",
            ],
            &["[]", "{\"a\"}", "{\"a\": 01}", "{\"a\": \"\n\"}"],
        ),
        ("start: \"lark\"", &["lark"], &["start"]),
        ("start: \"::=\" | /::=b/", &["::=", "::=b"], &["b"]),
        (
            "# a = b\nstart: \"a\"\n  | \"= \" | %json\n {\"const\": \"x = y\"}",
            &["a", "= ", "\"x = y\""],
            &["b"],
        ),
    ];
    for (grammar, words, others) in cases {
        for word in *words {
            assert!(good(grammar, word), "{grammar} {word:?}");
        }
        for other in *others {
            assert!(!good(grammar, other), "{grammar} {other:?}");
        }
    }
}

#[test]
fn faults_name_their_line() {
    let long = format!(
        "root ::= {}\n{}",
        "a0 ".repeat(9),
        (0..9)
            .map(|at| format!("a{at} ::= {}\n", format!("a{} ", at + 1).repeat(9)))
            .collect::<String>()
            + "a9 ::= \"x\""
    );
    for (grammar, fault) in [
        ("root ::= \"a\n", "line 2: a quote is missing"),
        ("root ::= a", "line 1: there is no rule 'a'"),
        ("\na ::= \"b\"", "it has no rule 'root'"),
        (
            "root ::= \"a\"\nroot ::= \"b\"",
            "line 2: the rule 'root' is there twice",
        ),
        ("root ::= (\"a\"", "line 1: a ')' is missing"),
        ("root ::= \"a\")", "line 1: ')' is not expected there"),
        ("root ::= [z-a]", "line 1: a range ends"),
        ("root ::= []", "line 1: a set of characters is empty"),
        ("root ::= [a", "line 1: a ']' is missing"),
        ("root ::= \"a\"{3,2}", "line 1: repetitions are written"),
        ("root ::= \"a\"{99999}", "line 1: repetitions are written"),
        ("root ::= \"\\q\"", "line 1: there is no such escape"),
        ("root ::= \"\\x4\"", "line 1: 2 hexadecimal digits"),
        ("root ::= <[5]>", "line 1: tokens"),
        ("root ::= (?=\"a\")", "line 1: look-ahead"),
        ("\"a\" root ::= \"b\"", "line 1: expected a rule"),
        ("root = a", "line 1: rules are written with '::=' in EBNF"),
        ("# c\n\n <root> := \"a\"", "line 3: rules are written with"),
        ("start: \"a\"\nb = \"c\"", "line 2: rules are written with"),
        (&long, "its translation to Lark grows"),
        (
            &format!("root ::= {}", "(".repeat(99)),
            "line 1: groups nest",
        ),
    ] {
        let error = lark(grammar).expect_err(grammar).to_string();
        assert!(error.starts_with(fault), "{grammar}: {error}");
    }
}

/// Grammars that clients write to exhaust the stack, the memory or the time of the server are
/// refused early, on the small stack that a task has.
#[test]
fn hostile_grammars_are_refused() {
    let chain = |rules: usize| {
        let rules = (0..rules).map(|at| format!("a{at}::=a{}\n", at + 1));
        format!(
            "root ::= a0\n{}a{}::=\"x\"",
            rules.clone().collect::<String>(),
            rules.len()
        )
    };
    let text = "x".repeat(30_000);
    let cases = [
        (
            format!("root ::= \"a\"{}", "*".repeat(60_000)),
            "line 1: more than 4 repetitions",
        ),
        (chain(4_000), "its rules and groups nest deeper"),
        (
            chain(300) + "\nb ::= root",
            "its rules and groups nest deeper",
        ),
        (
            format!("a ::= \"{text}\"\nroot ::= {}", "a ".repeat(9_000)),
            "its translation to Lark",
        ),
        (
            format!(
                "a ::= \"{text}\"\nroot ::= \"(\" root \")\" {}",
                "|a ".repeat(9_000)
            ),
            "its translation to Lark",
        ),
        (
            format!(
                "a ::= \"{text}\"\nroot ::= \"b\" {}",
                "|(a root)*".repeat(3_000)
            ),
            "its translation to Lark",
        ),
        (
            format!("root ::= \"{}\"", "a".repeat(70_000)),
            "it has 70011 bytes",
        ),
        (
            format!("start: \"{}\"", "a".repeat(70_000)),
            "it has 70009 bytes",
        ),
        (
            format!("root ::= \"{}\"", "-".repeat(20_000)),
            "its translation to Lark",
        ),
    ];
    let test = move || {
        for (grammar, fault) in cases {
            let error = lark(&grammar).expect_err(fault).to_string();
            assert!(error.starts_with(fault), "{error}");
        }
        lark(&chain(60)).expect("a chain of 60 rules");
        let many: String = (0..2_500).map(|at| format!("a{at}::=\"x\" b\n")).collect();
        lark(&format!("{many}b::=[0-9]\nroot::=a1 \"y\" root | a2")).expect("many rules");
    };
    let thread = std::thread::Builder::new().stack_size(2 << 20);
    thread.spawn(test).unwrap().join().unwrap();
}
