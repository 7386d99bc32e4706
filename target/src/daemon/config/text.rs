//! The text of a configuration file, or why there is none, and what comes first in it. Called by `config`.

use std::io::ErrorKind;
use std::path::Path;

use toml::de::DeTable;

use super::error::Fault;

/// Reads the whole file.
pub(super) fn read(file: &Path) -> Result<String, Fault> {
    let fault =
        |wrong: String, instead: String| Fault::File { file: file.to_owned(), wrong, instead };
    let shown = file.display();
    let bytes = std::fs::read(file).map_err(|error| match error.kind() {
        ErrorKind::NotFound => fault(
            "there is no such file".to_owned(),
            "write it (configs/loopback.toml is the shortest that works), or give another to --config"
                .to_owned(),
        ),
        ErrorKind::NotADirectory => fault(
            "a part of this path is a file, no folder".to_owned(),
            "give the path of a file to --config".to_owned(),
        ),
        ErrorKind::IsADirectory => fault(
            "this is a folder".to_owned(),
            format!("give the file in it: --config {}", file.join("lariatd.toml").display()),
        ),
        ErrorKind::PermissionDenied => fault(
            format!("the user of this process (uid {}) may not read it", nix::unistd::geteuid()),
            format!(
                "give it the rights on the file and on the folders above (`namei -l {shown}` shows \
                 them), or run lariatd as a user who has them"
            ),
        ),
        _ => fault(
            format!("it cannot be read: {error}"),
            "give a file that can be read to --config".to_owned(),
        ),
    })?;
    String::from_utf8(bytes).map_err(|error| {
        let good = error.as_bytes().iter().take(error.utf8_error().valid_up_to());
        let line = 1 + good.filter(|byte| **byte == b'\n').count();
        fault(
            format!("line {line} is not UTF-8, as TOML has to be"),
            format!("save the file in that encoding (`file {shown}` may know which it has)"),
        )
    })
}

/// The keys of the whole file in its order, which the library that reads their values does not keep.
pub(super) fn root_keys(text: &str) -> Vec<String> {
    let Ok(table) = DeTable::parse(text) else { return Vec::new() };
    let mut keys: Vec<_> = table.get_ref().keys().collect();
    keys.sort_by_key(|key| key.span().start);
    keys.into_iter().map(|key| key.get_ref().to_string()).collect()
}
