//! Access to a server: keys, secrets and web pages.

use crate::resolve;
use crate::testing::{Program, algorithms, folder, llama, machine, resolve_line};

#[test]
fn secrets_come_from_files_without_their_line_ends() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "s3cret\n").expect("written");
    let (engine, node) =
        resolve_line(&format!("--api-key-file {}", file.path().display())).expect("good");
    assert_eq!(node.api_key.as_deref(), Some("s3cret"));
    assert!(engine.server.api_key_required);
    std::fs::write(file.path(), "\n").expect("written");
    let path = file.path().display().to_string();
    let error = resolve_line(&format!("--api-key-file {path}")).expect_err("it is empty");
    assert!(error.to_string().contains(&path), "{error}");
}

#[test]
fn secrets_are_in_no_error_and_in_no_engine_configuration() {
    let line =
        "--nnodes 2 --tp 2 --dist-init-addr a:1 --dist-secret hunter2-hunter2-2 --api-key hunter3";
    let (engine, node) = resolve_line(line).expect("good");
    let text = serde_json::to_string(&engine).expect("json");
    assert!(!text.contains("hunter"));
    assert_eq!(node.dist_secret.as_deref(), Some("hunter2-hunter2-2"));
    let error =
        resolve_line("--dist-secret hunter2-hunter2-2 --dist-init-addr a:1").expect_err("one node");
    assert!(!error.to_string().contains("hunter"), "{error}");
}

#[test]
fn operators_have_a_key_of_their_own() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "root\n").expect("written");
    let option = format!("--admin-api-key-file {}", file.path().display());
    let (engine, node) = resolve_line(&option).expect("good");
    assert_eq!(node.admin_api_key.as_deref(), Some("root"));
    assert!(!engine.server.api_key_required);
    assert!(!format!("{node:?}").contains("root"));
    assert!(resolve_line(&format!("{option} --api-key other")).is_ok());
    let error = resolve_line(&format!("{option} --api-key root")).expect_err("one key for both");
    assert!(error.to_string().contains("--api-key"), "{error}");
}

#[test]
fn an_open_server_is_noted() {
    let model = folder(&llama(), None);
    let texts = "--host 0.0.0.0 --speculative-algorithm TEXTS --weight-update-dir /";
    let rights = ["flush", "TEXTS", "weights"];
    let table: [(&str, &[&str]); 6] = [
        ("", &[]),
        ("--host localhost", &[]),
        ("--host ::1", &[]),
        ("--host 0.0.0.0", &rights[..1]),
        (texts, &rights),
        ("--host 0.0.0.0 --api-key k", &[]),
    ];
    for (line, noted) in table {
        let words = ["lockstep", "--device", "cpu"]
            .into_iter()
            .chain(line.split_whitespace());
        let mut args = Program::parse_words(words).expect("parses").args;
        args.model.model_path = Some(model.path().to_owned());
        let notes = resolve(&args, &machine(), &algorithms(), &crate::testing::Plain)
            .expect("good")
            .notes;
        assert_eq!(notes.is_empty(), noted.is_empty(), "{line}: {notes:?}");
        for right in rights {
            let said = notes.iter().any(|note| note.contains(right));
            assert_eq!(said, noted.contains(&right), "{line}: {right}: {notes:?}");
        }
    }
}

#[test]
fn a_server_that_every_page_may_use_is_noted() {
    for (line, noted) in [
        ("--cors-allowed-origins https://a.example", false),
        ("--cors-allowed-origins *", true),
        ("--allowed-hosts *", true),
        ("--cors-allowed-origins * --api-key k", false),
    ] {
        let model = folder(&llama(), None);
        let words = ["lockstep", "--device", "cpu"]
            .into_iter()
            .chain(line.split_whitespace());
        let mut args = Program::parse_words(words).expect("parses").args;
        args.model.model_path = Some(model.path().to_owned());
        let notes = resolve(&args, &machine(), &algorithms(), &crate::testing::Plain)
            .expect("good")
            .notes;
        let said = notes.iter().any(|note| note.contains("web page"));
        assert_eq!(said, noted, "{line}: {notes:?}");
    }
}

#[test]
fn origins_and_hosts_are_kept_in_one_form() {
    let line = "--cors-allowed-origins HTTPS://Chat.example.com/,http://localhost:3000 \
                --allowed-hosts LLM.example.com --allowed-hosts .example.org \
                --served-model-name a b";
    let (engine, _) = resolve_line(line).expect("good");
    let server = &engine.server;
    let origins = ["https://chat.example.com", "http://localhost:3000"];
    assert_eq!(server.web.cors_allowed_origins, origins);
    assert_eq!(
        server.web.allowed_hosts,
        ["llm.example.com", ".example.org"]
    );
    assert_eq!(server.served_model_name, "a");
    assert_eq!(server.served_model_aliases, ["b"]);
    for wrong in [
        "--cors-allowed-origins chat.example.com",
        "--cors-allowed-origins https://a.example/path",
        "--cors-allowed-origins https://*.example",
        "--cors-allowed-origins null",
        "--allowed-hosts http://a.example",
        "--allowed-hosts a.example:80",
        "--served-model-name=",
    ] {
        let error = resolve_line(wrong).expect_err(wrong).to_string();
        let option = wrong.split([' ', '=']).next().unwrap_or(wrong);
        assert!(error.contains(option), "{wrong}: {error}");
    }
}
