use std::{fs, path::Path};

/// Cases of the page, each once and in order.
const CASES: usize = 35;

/// Every test that the page names exists, and every case names one or says what is not served.
#[test]
fn every_case_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = root.join("docs/design/structured-output-cases.md");
    let page = fs::read_to_string(page).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| "));
    let rows = rows.filter(|row| row.starts_with(|c: char| c.is_ascii_digit()));
    let mut cases = 0;
    for row in rows {
        cases += 1;
        let cells: Vec<_> = row.trim_end_matches(" |").split(" | ").collect();
        assert_eq!((cells.len(), cells[0]), (3, &*cases.to_string()), "{row}");
        if cells[2].starts_with("not served: ") {
            continue;
        }
        for named in cells[2].split(", ") {
            let (path, test) = named.trim_matches('`').split_once("::").expect(row);
            let source = fs::read_to_string(root.join(path));
            let source = source.unwrap_or_else(|error| panic!("{path}: {error}"));
            let found = source.find(&format!("fn {test}("));
            let before = &source[..found.unwrap_or_else(|| panic!("{path} has no {test}"))];
            let attribute = before.rfind("#[").map(|at| &before[at..]);
            let is_test = attribute.is_some_and(|text| text.contains("test"));
            assert!(is_test, "{path}: {test} is no test");
        }
    }
    assert_eq!(cases, CASES);
}
