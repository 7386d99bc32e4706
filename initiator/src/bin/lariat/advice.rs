//! What a user of nvme-cli may look for here in vain, and an example for who leaves arguments out:
//! printed below clap's own words. Calls clap; called by `main`.

use std::io::Write as _;

use clap::CommandFactory as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::AFTER_HELP;

const CONNECT: &str = "\
lariat connects for each command and shows no block device. Look what a target has, then use it:
  lariat discover -t rdma -a 192.0.2.7
  lariat read -t rdma -a 192.0.2.7 -n nqn.2026-11.io.lariat:demo --length 64M --output copy.img
For a block device let Linux connect:
  nvme connect -t rdma -a 192.0.2.7 -s 4420 -n nqn.2026-11.io.lariat:demo";

/// The option that nvme-cli shortens to -o.
const FORMAT: &str = "--output-format";

const DISCONNECT: &str = "lariat connects for each command alone: nothing stays connected.";

const LIST: &str = "\
lariat connects for each command alone: there are no devices to list. What a target has:
  lariat discover -t rdma -a 192.0.2.7
  lariat list-ns -t rdma -a 192.0.2.7 -n nqn.2026-11.io.lariat:demo";

/// Ends the process with clap's message (help and version are such, too) and what there is to add.
pub(crate) fn exit(error: &clap::Error) -> ! {
    let _ = error.print();
    let verb = std::env::args().nth(1);
    if let Some(words) = words(error, verb.as_deref()) {
        let _ = writeln!(std::io::stderr(), "\n{words}");
    }
    std::process::exit(error.exit_code())
}

fn words(error: &clap::Error, verb: Option<&str>) -> Option<String> {
    match error.kind() {
        ErrorKind::InvalidSubcommand => match error.get(ContextKind::InvalidSubcommand) {
            Some(ContextValue::String(name)) => {
                Some(foreign(name).map_or_else(commands, str::to_owned))
            }
            _ => None,
        },
        // The address without its flag, say.
        ErrorKind::UnknownArgument => match error.get(ContextKind::InvalidArg) {
            Some(ContextValue::String(word)) if !word.starts_with('-') => verb.map(example),
            _ => None,
        },
        // Who copies means the file.
        ErrorKind::InvalidValue => match (verb, error.get(ContextKind::InvalidArg)) {
            (Some("read"), Some(ContextValue::String(flag))) if flag.contains(FORMAT) => {
                Some("The file to read into goes with --output; -o is --output-format.".to_owned())
            }
            _ => None,
        },
        ErrorKind::MissingRequiredArgument => verb.map(example),
        _ => None,
    }
}

/// A verb of nvme-cli that is none here.
fn foreign(verb: &str) -> Option<&'static str> {
    match verb {
        "connect" | "connect-all" => Some(CONNECT),
        "disconnect" | "disconnect-all" => Some(DISCONNECT),
        "list" | "list-subsys" => Some(LIST),
        _ => None,
    }
}

/// All verbs.
fn commands() -> String {
    let line = crate::Line::command();
    let names: Vec<&str> = line.get_subcommands().map(clap::Command::get_name).collect();
    format!("The commands are {}.", names.join(", "))
}

/// The example of a verb in the help, or one that goes for all.
fn example(verb: &str) -> String {
    let start = format!("  lariat {verb} ");
    match AFTER_HELP.lines().find(|line| line.starts_with(&start)) {
        Some(line) => format!("Example:\n{line}"),
        None => format!("Example:\n{start}-t rdma -a 192.0.2.7 -n nqn.2026-11.io.lariat:demo"),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::Line;

    #[test]
    fn nvme_clis_other_verbs_are_explained() {
        for verb in ["connect", "connect-all", "disconnect", "list", "list-subsys"] {
            let error = Line::try_parse_from(["lariat", verb, "-a", "192.0.2.7"]).unwrap_err();
            let words = words(&error, Some(verb)).unwrap();
            assert!(words.contains("connects for each command"), "{verb}: {words}");
        }
        let other = Line::try_parse_from(["lariat", "frobnicate"]).unwrap_err();
        let words_of_all = words(&other, Some("frobnicate")).unwrap();
        assert!(words_of_all.contains("discover, id-ctrl, id-ns, list-ns, read"), "{words_of_all}");
        let bare = Line::try_parse_from(["lariat", "discover", "192.0.2.7"]).unwrap_err();
        let example = words(&bare, Some("discover")).unwrap();
        assert!(example.ends_with("lariat discover -t rdma -a 192.0.2.7"), "{example}");
        let copy = ["lariat", "read", "-a", "::1", "-n", "nqn.2026-11.io.lariat:d", "-o", "f.img"];
        let copy = words(&Line::try_parse_from(copy).unwrap_err(), Some("read")).unwrap();
        assert!(copy.contains("goes with --output;"), "{copy}");
        let flag = Line::try_parse_from(["lariat", "discover", "--foo"]).unwrap_err();
        assert_eq!(words(&flag, Some("discover")), None);
    }

    /// Each example is one that the command line takes.
    #[test]
    fn what_is_missing_is_shown_by_an_example() {
        let verbs: Vec<_> =
            Line::command().get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
        assert!(verbs.len() > 7, "{verbs:?}");
        for verb in &verbs {
            let error = Line::try_parse_from(["lariat", verb]).unwrap_err();
            let words = words(&error, Some(verb)).unwrap();
            let line = words.lines().last().unwrap().trim();
            let line = line.split(" | ").next().unwrap();
            Line::try_parse_from(line.split(' ')).unwrap_or_else(|error| panic!("{line}: {error}"));
            assert!(line.starts_with(&format!("lariat {verb} ")), "{line}");
        }
        for text in [CONNECT, LIST] {
            for line in text.lines().filter_map(|line| line.strip_prefix("  lariat ")) {
                Line::try_parse_from(format!("lariat {line}").split(' ')).unwrap();
            }
        }
    }
}
