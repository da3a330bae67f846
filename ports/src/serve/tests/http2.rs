//! Frames of clients of HTTP/2 (RFC 9113, section 4.1).

/// The preface and settings, which change nothing.
pub(super) fn preface() -> Vec<u8> {
    let mut preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    preface.extend(frame(4, 0, 0, &[]));
    preface
}

/// The head of a call of `path`, with one more field where there is one.
pub(super) fn head(stream: u8, path: &str, field: Option<(&str, &str)>) -> Vec<u8> {
    let text = |text: &str| {
        let length = u8::try_from(text.len()).expect("short");
        [&[length], text.as_bytes()].concat()
    };
    // `:method: POST`, `:scheme: http` and `:path` (RFC 7541, appendix A).
    let mut head = [&[0x83, 0x86, 0x44], &*text(path)].concat();
    if let Some((name, value)) = field {
        head.extend([&[0], &*text(name), &text(value)].concat());
    }
    frame(1, 4, stream, &head)
}

/// The preface, and a call of `path` with a `body` without an end.
pub(super) fn begun(path: &str, body: &[u8]) -> Vec<u8> {
    let mut begun = preface();
    begun.extend(head(1, path, None));
    for part in body.chunks(16 << 10) {
        begun.extend(frame(0, 0, 1, part));
    }
    begun
}

fn frame(kind: u8, flags: u8, stream: u8, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).expect("small").to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, stream], content].concat()
}
