//! How a run ends other than well, and the exit code of each way. Calls nothing; all verbs return
//! these (through `anyhow`), `main` turns them into an exit code.

use std::io;

/// A run-time error: the network, the target, a file.
pub(crate) const EXIT_RUN_TIME: u8 = 1;
/// The arguments make no sense, or do not fit the namespace.
pub(crate) const EXIT_USAGE: u8 = 2;
/// SIGINT or SIGTERM came before the work was done.
pub(crate) const EXIT_INTERRUPTED: u8 = 130;
/// Nobody reads stdout any more: what a shell reports of a program that SIGPIPE ended.
pub(crate) const EXIT_PIPE: u8 = 141;

/// Wrong arguments that clap cannot see.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// Stopped by a signal; all is disconnected.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Interrupted(pub(crate) String);

/// Stdout is closed at the other end.
#[derive(Debug, thiserror::Error)]
#[error("stdout is closed")]
pub(crate) struct PipeClosed;

/// A usage error as an `anyhow` error.
pub(crate) fn usage(words: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Usage(words.into()))
}

/// An error of writing to stdout.
pub(crate) fn stdout_error(error: io::Error) -> anyhow::Error {
    if error.kind() == io::ErrorKind::BrokenPipe {
        anyhow::Error::new(PipeClosed)
    } else {
        anyhow::Error::new(error).context("cannot write to stdout")
    }
}

/// The exit code, and the line for stderr, if one is due.
pub(crate) fn verdict(error: &anyhow::Error) -> (u8, Option<String>) {
    if error.is::<PipeClosed>() {
        return (EXIT_PIPE, None);
    }
    let code = if error.is::<Usage>() {
        EXIT_USAGE
    } else if error.is::<Interrupted>() {
        EXIT_INTERRUPTED
    } else {
        EXIT_RUN_TIME
    };
    (code, Some(one_line(&chain(error))))
}

/// An error and its causes, each once: some errors of the library name their cause themselves, for
/// those who print them alone.
fn chain(error: &anyhow::Error) -> String {
    let mut words = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if words.is_empty() {
            words = cause;
        } else if !words.ends_with(&cause) {
            words.push_str(": ");
            words.push_str(&cause);
        }
    }
    words
}

/// Line breaks and other controls become spaces: what a target says must not rule the terminal.
pub(crate) fn one_line(text: &str) -> String {
    text.split(|letter: char| letter.is_control())
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    use super::*;

    #[test]
    fn each_way_to_end_has_its_code() {
        assert_eq!(verdict(&anyhow!("a").context("b")), (1, Some("b: a".into())));
        assert_eq!(verdict(&usage("odd")), (2, Some("odd".into())));
        let wrapped = Err::<(), _>(usage("odd")).context("write").unwrap_err();
        assert_eq!(verdict(&wrapped), (2, Some("write: odd".into())));
        assert_eq!(verdict(&Interrupted("stopped".into()).into()), (130, Some("stopped".into())));
        assert_eq!(verdict(&stdout_error(io::ErrorKind::BrokenPipe.into())), (141, None));
        assert_eq!(verdict(&stdout_error(io::ErrorKind::StorageFull.into())).0, 1);
    }

    #[test]
    fn a_cause_is_told_once() {
        let source = || lariat::ConnectError::Fabric { provider: "ib", source: "no device".into() };
        let words = verdict(&anyhow::Error::new(source()).context("connect")).1.unwrap();
        assert_eq!(words, "connect: cannot open the ib fabric: no device");
    }

    #[test]
    fn a_message_is_one_line_without_escapes() {
        assert_eq!(one_line("a\nb\u{1b}[31mc\r\n"), "a b [31mc");
    }
}
