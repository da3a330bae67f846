//! The model's name, as a label of every series of this project.

/// Adds the label `model_name` to every sample, for dashboards of several models.
/// Samples of `process_…` series stay as they are, since all programs share their
/// names.
pub fn with_model(text: &str, model: &str) -> String {
    // The format's escapes: backslash, quotation mark, line end.
    let model = model
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n");
    let mut out = String::with_capacity(text.len() * 2);
    for line in text.lines() {
        let ours = !line.starts_with('#') && !line.starts_with("process_");
        let name = line.find(['{', ' ']).filter(|_| ours);
        match name {
            None => out.push_str(line),
            Some(end) => {
                let (name, rest) = line.split_at(end);
                out.push_str(name);
                out.push_str("{model_name=\"");
                out.push_str(&model);
                match rest.strip_prefix('{') {
                    Some(labels) => {
                        out.push_str("\",");
                        out.push_str(labels);
                    }
                    None => {
                        out.push_str("\"}");
                        out.push_str(rest);
                    }
                }
            }
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_is_labelled_and_no_comment() {
        let text = "# HELP a b c\n# TYPE a counter\na 1\na_bucket{le=\"0.5\",x=\"{\"} 2\n\
                    process_threads{x=\"y\"} 3\n";
        let labelled = "# HELP a b c\n# TYPE a counter\na{model_name=\"m\\\\\\\"\"} 1\n\
                        a_bucket{model_name=\"m\\\\\\\"\",le=\"0.5\",x=\"{\"} 2\n\
                        process_threads{x=\"y\"} 3\n";
        assert_eq!(with_model(text, "m\\\""), labelled);
    }
}
