//! Sizes as people write them: `64MiB`, `10 GB`, `512`. Called by `reader`.

/// Parses a size in bytes: a whole number and a unit (B, KiB, MiB, GiB, TiB, or KB, MB, GB, TB in
/// powers of ten). None if it is not one, or exceeds 64 bits.
pub(super) fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(end)?;
    let scale: u64 = match unit.trim() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
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
            ("1G", None),
            ("1 gib", None),
            ("１", None),
        ] {
            assert_eq!(parse(text), bytes, "{text:?}");
        }
    }
}
