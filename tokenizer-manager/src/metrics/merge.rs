//! Merge of several texts in Prometheus' format.

use std::collections::BTreeMap;

/// The comments and the samples of one family.
type Family<'a> = (Vec<&'a str>, Vec<&'a str>);

/// Merges texts so that the samples of each family stand together, under one set of
/// comments, as the format requires. In each text a family must begin with its
/// comments.
pub fn merge<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let mut families = BTreeMap::<&str, Family<'_>>::new();
    let mut length = 0;
    for text in texts {
        length += text.len();
        let mut family = "";
        for line in text.lines().filter(|line| !line.is_empty()) {
            let comment = line.strip_prefix("# ");
            // The word after HELP or TYPE is the family's name.
            family = comment
                .and_then(|rest| rest.split(' ').nth(1))
                .unwrap_or(family);
            let (comments, samples) = families.entry(family).or_default();
            if comment.is_none() {
                samples.push(line);
            } else if !comments.contains(&line) {
                comments.push(line);
            }
        }
    }
    let mut merged = String::with_capacity(length);
    for line in families
        .into_values()
        .flat_map(|(comments, samples)| [comments, samples])
        .flatten()
    {
        merged.push_str(line);
        merged.push('\n');
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_stand_together_under_one_set_of_comments() {
        let front = |front| {
            format!(
                "# HELP h a time\n# TYPE h histogram\nh_bucket{{f=\"{front}\",le=\"1\"}} 1\n\
                 h_sum{{f=\"{front}\"}} 2\n\n# TYPE a gauge\na{{f=\"{front}\"}} 3\n"
            )
        };
        let (first, second) = (front(0), front(1));
        let own = "# HELP b b\n# TYPE b counter\nb 4\n";
        let merged = merge([first.as_str(), own, &second]);
        assert_eq!(
            merged,
            "# TYPE a gauge\na{f=\"0\"} 3\na{f=\"1\"} 3\n\
             # HELP b b\n# TYPE b counter\nb 4\n\
             # HELP h a time\n# TYPE h histogram\nh_bucket{f=\"0\",le=\"1\"} 1\nh_sum{f=\"0\"} 2\n\
             h_bucket{f=\"1\",le=\"1\"} 1\nh_sum{f=\"1\"} 2\n"
        );
        assert_eq!(merge([merged.as_str()]), merged);
    }
}
