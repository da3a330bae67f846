//! Options of NVRTC: obeyed, ignored or refused.

use crate::arch::Arch;

/// Parsed options of a program.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) arch: Arch,
    /// Options for the host's compiler: macros and folders of headers.
    pub(super) passed: Vec<String>,
}

/// Options that change nothing on the host, up to their value.
const WITHOUT_MEANING: [&str; 18] = [
    "--std",
    "-std",
    "-default-device",
    "--device-as-default-execution-space",
    "--ptxas-options",
    "-Xptxas",
    "--fmad",
    "-fmad",
    "--ftz",
    "--prec-div",
    "--prec-sqrt",
    "--use_fast_math",
    "--extra-device-vectorization",
    "--generate-line-info",
    "-lineinfo",
    "--maxrregcount",
    "--split-compile",
    "--minimal",
];

impl Options {
    /// # Errors
    /// A message that names the wrong option.
    pub(super) fn parse(options: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut parsed = Self {
            arch: Arch::DEFAULT,
            passed: Vec::new(),
        };
        for option in options {
            let (name, value) = option.split_once('=').unwrap_or((option.as_str(), ""));
            match name {
                "--gpu-architecture" | "-arch" => {
                    let arch = Arch::parse(value);
                    parsed.arch = arch.ok_or_else(|| format!("no architecture `{value}`"))?;
                }
                "--define-macro" => parsed.passed.push(format!("-D{value}")),
                "--undefine-macro" => parsed.passed.push(format!("-U{value}")),
                "--include-path" => parsed.passed.push(format!("-I{value}")),
                _ if WITHOUT_MEANING.contains(&name) => {}
                _ if ["-D", "-U", "-I"]
                    .iter()
                    .any(|known| option.starts_with(known)) =>
                {
                    parsed.passed.push(option);
                }
                _ => {
                    return Err(format!(
                        "the fake NVRTC does not know the option `{option}`"
                    ));
                }
            }
        }
        Ok(parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::{Arch, Options};

    fn parse(options: &[&str]) -> Result<Options, String> {
        Options::parse(options.iter().map(|option| (*option).to_owned()))
    }

    #[test]
    fn options_are_obeyed_or_refused() {
        let all = [
            "--gpu-architecture=sm_90a",
            "-DWIDTH=64",
            "--define-macro=A=1",
            "-Ifolder",
            "--std=c++17",
            "-default-device",
        ];
        let expected = Options {
            arch: Arch::parse("sm_90a").expect("a name"),
            passed: ["-DWIDTH=64", "-DA=1", "-Ifolder"]
                .map(str::to_owned)
                .into(),
        };
        assert_eq!(parse(&all), Ok(expected));
        assert_eq!(parse(&[]).map(|options| options.arch), Ok(Arch::DEFAULT));
        for bad in ["--gpu-architecture=sm_9", "--unheard-of", "-o=x"] {
            parse(&[bad]).expect_err(bad);
        }
    }
}
