//! Sizes as people write them: `64MiB`, `10 GB`, `1G`, `512`. Called by `reader`.
//!
//! The options of `lariat` take the same ones (its `units`; a test of both binaries holds them together): no
//! crate that both depend on knows text.

/// Parses a size in bytes: a whole number and a unit. `K`, `KiB`, `M`, `MiB` ... are powers of 1024 (as in
/// truncate and fio), `kB`, `MB`, `GB`, `TB` powers of 1000. None if it is not one, or exceeds 64 bits.
pub(super) fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(end)?;
    let scale: u64 = match unit.trim() {
        "" | "B" | "b" => 1,
        "k" | "K" | "KiB" | "kiB" | "Ki" => 1 << 10,
        "m" | "M" | "MiB" | "Mi" => 1 << 20,
        "g" | "G" | "GiB" | "Gi" => 1 << 30,
        "t" | "T" | "TiB" | "Ti" => 1 << 40,
        "KB" | "kB" => 1000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(scale)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", Some(0)),
            ("512", Some(512)),
            ("512B", Some(512)),
            ("1KiB", Some(1024)),
            (" 64 MiB ", Some(64 << 20)),
            ("10GB", Some(10_000_000_000)),
            ("16777215TiB", Some(16_777_215 << 40)),
            ("16777216TiB", None),
            ("18446744073709551616", None),
            ("", None),
            ("MiB", None),
            ("1.5GiB", None),
            ("-1", None),
            ("1G", Some(1 << 30)),
            ("4k", Some(4096)),
            ("4kiB", Some(4096)),
            ("2 Ti", Some(2 << 40)),
            ("17b", Some(17)),
            ("16777216T", None),
            ("4x", None),
            ("4 k k", None),
            ("1 gib", None),
            ("１", None),
        ] {
            assert_eq!(parse(text), bytes, "{text:?}");
        }
    }
}
