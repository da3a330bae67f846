//! The kernels of a source, found by a minimal reading of its text.

/// A function that can be launched.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Kernel {
    pub(super) name: String,
    /// Arguments of `__launch_bounds__`, as written; without them, the most that CUDA allows.
    pub(super) bounds: String,
}

/// All functions of `source` that are `__global__`.
pub(super) fn kernels(source: &str) -> Vec<Kernel> {
    let code = without_comments(source);
    let mut lines: Vec<&str> = Vec::new();
    let mut directive = false;
    for line in code.lines() {
        directive |= line.trim_start().starts_with('#');
        if !directive {
            lines.push(line);
        }
        // A directive goes on behind a backslash.
        directive &= line.ends_with('\\');
    }
    let code = lines.join("\n");
    code.split("__global__")
        .skip(1)
        .filter_map(kernel)
        .collect()
}

/// The kernel whose declaration goes on with `rest`.
fn kernel(rest: &str) -> Option<Kernel> {
    let mut bounds = "1024".to_owned();
    let mut rest = rest.trim_start();
    loop {
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
        let (word, behind) = rest.split_at(end);
        let behind = behind.trim_start();
        match (word, behind.starts_with('(')) {
            ("", _) => return None,
            ("__launch_bounds__", true) => {
                let close = closing(behind)?;
                bounds = behind[1..close].to_owned();
                rest = behind[close + 1..].trim_start();
            }
            (name, true) => {
                let name = name.to_owned();
                return Some(Kernel { name, bounds });
            }
            (_, false) => rest = behind,
        }
    }
}

/// Index of the parenthesis that closes the one at the beginning of `text`.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    text.char_indices().find_map(|(at, c)| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        (depth == 0).then_some(at)
    })
}

/// `source` with a space in place of every comment.
fn without_comments(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("//").into_iter().chain(rest.find("/*")).min() {
        let (before, comment) = rest.split_at(start);
        code.push_str(before);
        code.push(' ');
        let (end, skip) = if comment.starts_with("//") {
            (comment.find('\n'), 0)
        } else {
            (comment.find("*/"), 2)
        };
        rest = end.map_or("", |end| &comment[end + skip..]);
    }
    code.push_str(rest);
    code
}

#[cfg(test)]
mod tests {
    use super::{Kernel, kernels};

    #[test]
    fn kernels_are_found_with_their_bounds() {
        let source = r#"
            // extern "C" __global__ void gone();
            /* __global__ void
               gone_too() */
            #define KERNEL(name) \
                extern "C" __global__ void name()
            extern "C" __global__ void first(float* x) {}
            extern "C" __global__ void __launch_bounds__(WARPS * (16 + 16), 2)
            second(const float* x, unsigned n) { first<<<1, 1>>>(x); }
            extern "C" __global__ __launch_bounds__(64) void third() {}
        "#;
        let kernel = |(name, bounds): (&str, &str)| Kernel {
            name: name.to_owned(),
            bounds: bounds.to_owned(),
        };
        let expected = [
            ("first", "1024"),
            ("second", "WARPS * (16 + 16), 2"),
            ("third", "64"),
        ];
        assert_eq!(kernels(source), expected.map(kernel));
        assert!(kernels("__device__ void f() {} // __global__").is_empty());
        assert!(kernels("__global__ void cut").is_empty());
    }
}
