//! Printing to stdout: human lines or JSON, a closed pipe is no panic. Calls `failure`; called by all
//! verbs.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use anyhow::Result;
use lariat::{Medium, Path};
use serde_json::{Map, Value};

use crate::failure::{one_line, stdout_error};

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum OutputFormat {
    /// For people.
    #[default]
    Normal,
    /// One JSON object.
    Json,
}

/// Prints text as it is.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(stdout_error)
}

/// Prints a JSON value, indented.
pub(crate) fn print_json(value: &Value) -> Result<()> {
    print(&format!("{value:#}\n"))
}

/// The provider and what its packets travelled over: `soft, shared memory`. Queues may differ.
pub(crate) fn provider_words(fabric: &str, paths: &[Option<Path>]) -> String {
    let mut words = fabric.to_owned();
    for path in each_once(paths) {
        let _ = write!(words, ", {}", path.medium);
    }
    words
}

/// The same for JSON, in the words of `--wire`: `"udp"`, `"shm"`, `"shm,udp"` where queues differ,
/// null where there is no choice.
pub(crate) fn wires_json(paths: &[Option<Path>]) -> Value {
    let names = each_once(paths).map(|path| match path.medium {
        Medium::Udp => "udp",
        Medium::SharedMemory => "shm",
    });
    let names: Vec<&str> = names.collect();
    if names.is_empty() { Value::Null } else { names.join(",").into() }
}

/// The first path of each medium.
fn each_once(paths: &[Option<Path>]) -> impl Iterator<Item = &Path> {
    let known = || paths.iter().flatten();
    known().enumerate().filter_map(move |(place, path)| {
        known().take(place).all(|before| before.medium != path.medium).then_some(path)
    })
}

/// One named value, for both formats.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Field {
    name: &'static str,
    value: Value,
    shown: String,
}

/// Named values in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Fields(Vec<Field>);

impl Fields {
    /// A text.
    pub(crate) fn text(&mut self, name: &'static str, text: &str) {
        let shown = one_line(text);
        self.0.push(Field { name, value: shown.clone().into(), shown });
    }

    /// A number.
    pub(crate) fn number(&mut self, name: &'static str, number: impl Into<u64>) {
        self.explained(name, number, "");
    }

    /// A number with what it means.
    pub(crate) fn explained(&mut self, name: &'static str, number: impl Into<u64>, meaning: &str) {
        let number = number.into();
        self.0.push(Field {
            name,
            value: number.into(),
            shown: meant(number.to_string(), meaning),
        });
    }

    /// A number of up to 128 bits; in JSON a string where it does not fit 64.
    pub(crate) fn wide(&mut self, name: &'static str, number: u128) {
        let value = u64::try_from(number).map_or_else(|_| number.to_string().into(), Value::from);
        self.0.push(Field { name, value, shown: number.to_string() });
    }

    /// A number that people read in hexadecimal, with what it means.
    pub(crate) fn hex(&mut self, name: &'static str, number: impl Into<u64>, meaning: &str) {
        let number = number.into();
        self.0.push(Field {
            name,
            value: number.into(),
            shown: meant(format!("{number:#x}"), meaning),
        });
    }

    /// A field of bits: the meaning of each that is set.
    pub(crate) fn bits(
        &mut self,
        name: &'static str,
        number: impl Into<u64>,
        meanings: &[(u32, &str)],
    ) {
        let number = number.into();
        let set: Vec<&str> = meanings
            .iter()
            .filter(|(bit, _)| number >> bit & 1 != 0)
            .map(|&(_, meaning)| meaning)
            .collect();
        self.hex(name, number, &set.join(", "));
    }

    /// Bytes as hexadecimal digits.
    pub(crate) fn digits(&mut self, name: &'static str, bytes: &[u8]) {
        let shown = hex_digits(bytes);
        self.0.push(Field { name, value: shown.clone().into(), shown });
    }

    /// Lines `name : value`.
    pub(crate) fn human(&self) -> String {
        let mut text = String::new();
        for field in &self.0 {
            let _ = writeln!(text, "{:<9} : {}", field.name, field.shown);
        }
        text
    }

    /// One object.
    pub(crate) fn json(&self) -> Map<String, Value> {
        self.0.iter().map(|field| (field.name.to_owned(), field.value.clone())).collect()
    }
}

/// Bytes as lower-case hexadecimal digits.
pub(crate) fn hex_digits(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn meant(number: String, meaning: &str) -> String {
    if meaning.is_empty() { number } else { format!("{number} ({meaning})") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wire_is_named_once() {
        let (shm, udp) = (Path::from(Medium::SharedMemory), Path::from(Medium::Udp));
        let paths = [Some(shm.clone()), Some(shm), Some(udp)];
        assert_eq!(provider_words("soft", &paths), "soft, shared memory, UDP");
        assert_eq!(wires_json(&paths), "shm,udp");
        assert_eq!(wires_json(paths.get(..2).unwrap()), "shm");
        assert_eq!(
            (provider_words("ib", &[None]), wires_json(&[None])),
            ("ib".into(), Value::Null)
        );
    }

    #[test]
    fn fields_come_in_both_formats() {
        let mut fields = Fields::default();
        fields.text("sn", "A\u{1b}B");
        fields.explained("mdts", 5u8, "128 KiB");
        fields.bits("cmic", 0b1011u8, &[(0, "ports"), (1, "controllers"), (2, "never")]);
        fields.wide("tnvmcap", u128::MAX);
        fields.digits("ieee", &[0, 0x1f, 0xff]);
        assert_eq!(
            fields.human(),
            "sn        : A B\n\
             mdts      : 5 (128 KiB)\n\
             cmic      : 0xb (ports, controllers)\n\
             tnvmcap   : 340282366920938463463374607431768211455\n\
             ieee      : 001fff\n"
        );
        assert_eq!(
            Value::Object(fields.json()),
            serde_json::json!({
                "sn": "A B",
                "mdts": 5,
                "cmic": 11,
                "tnvmcap": "340282366920938463463374607431768211455",
                "ieee": "001fff",
            })
        );
    }
}
