//! Files that cannot be read are told of in words, and what to do.

use super::{Config, Path};

fn refusal(file: &Path) -> String {
    let error = Config::load(file).unwrap_err().to_string();
    assert!(!error.contains("os error"), "{error}");
    match error.strip_prefix(&format!("{}: ", file.display())) {
        Some(error) => error.to_owned(),
        None => panic!("{error}"),
    }
}

#[test]
fn files_that_are_none() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let missing = refusal(&folder.join("none.toml"));
    assert!(missing.starts_with("there is no such file; write it (configs/loopback"), "{missing}");
    assert_eq!(refusal(&folder.join("none/a.toml")), missing);
    let shown = folder.display();
    let expected = format!("this is a folder; give the file in it: --config {shown}/lariatd.toml");
    assert_eq!(refusal(folder), expected);
    let file = folder.join("a.toml");
    std::fs::write(&file, "# Fähre\n").unwrap();
    let below = refusal(&file.join("b.toml"));
    assert!(below.starts_with("a part of this path is a file, no folder; give"), "{below}");
}

#[test]
fn text_that_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.toml");
    std::fs::write(&file, b"# good\n\n# F\xe4hre\n\xff").unwrap();
    let encoded = refusal(&file);
    let expected = format!(
        "line 3 is not UTF-8, as TOML has to be; save the file in that encoding (`file {}` may know \
         which it has)",
        file.display()
    );
    assert_eq!(encoded, expected);
}
