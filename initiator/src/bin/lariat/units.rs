//! Sizes, times and rates as people write and read them. Calls nothing; called by the options of all
//! verbs and by the reports.

use core::time::Duration;

/// Parses a size: a number of bytes, or one with a suffix. `k`, `K`, `KiB`, `m`, `MiB` ... are powers
/// of 1024 (as in dd and fio), `kB`, `MB`, `GB`, `TB` powers of 1000. Configurations of `lariatd` take
/// the same ones.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = text.split_at(digits);
    if number.is_empty() {
        return Err(format!("{text:?} is not a size: write 4096, 4k, 1MiB, 2G"));
    }
    let factor: u64 = match suffix.trim_start() {
        "" | "B" | "b" => 1,
        "k" | "K" | "KiB" | "kiB" | "Ki" => 1 << 10,
        "m" | "M" | "MiB" | "Mi" => 1 << 20,
        "g" | "G" | "GiB" | "Gi" => 1 << 30,
        "t" | "T" | "TiB" | "Ti" => 1 << 40,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        other => {
            return Err(format!(
                "unknown size suffix {other:?}: use k, M, G, T (1024) or kB, MB, GB, TB (1000)"
            ));
        }
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(factor))
        .ok_or_else(|| format!("{text:?} is more than 2^64 bytes"))
}

/// Parses a time: seconds, or with a suffix `ms`, `s`, `m`, `h`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a time: write 10, 1.5s, 500ms, 2m");
    let trimmed = text.trim();
    let end = trimmed
        .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
        .unwrap_or(trimmed.len());
    let (number, suffix) = trimmed.split_at(end);
    let factor = match suffix.trim_start() {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number * factor).map_err(|_| wrong())
}

/// Parses a time limit: as [`parse_duration`], but more than none.
pub(crate) fn parse_limit(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("nothing is done in no time: write 10, 1.5s, 500ms, 2m".to_owned()),
        limit => Ok(limit),
    }
}

/// A size with a binary unit: `4 KiB`, `1.50 GiB`; whole numbers without a fraction.
pub(crate) fn show_size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let mut shown = format!("{bytes} B");
    let mut unit_bytes = 1u64;
    for unit in UNITS {
        unit_bytes <<= 10;
        if bytes < unit_bytes {
            break;
        }
        shown = if bytes.is_multiple_of(unit_bytes) {
            format!("{} {unit}", bytes / unit_bytes)
        } else {
            format!("{:.2} {unit}", to_f64(bytes) / to_f64(unit_bytes))
        };
    }
    shown
}

/// A rate in MB/s (10^6).
pub(crate) fn show_rate(bytes_per_second: f64) -> String {
    format!("{:.1} MB/s", bytes_per_second / 1e6)
}

/// A count with a decimal unit: `950`, `12.3k`, `1.25M`.
pub(crate) fn show_count(count: f64) -> String {
    if count >= 1e6 {
        format!("{:.2}M", count / 1e6)
    } else if count >= 1e3 {
        format!("{:.1}k", count / 1e3)
    } else {
        format!("{count:.0}")
    }
}

/// A latency in the unit that suits it.
pub(crate) fn show_latency(nanoseconds: f64) -> String {
    if nanoseconds >= 1e9 {
        format!("{:.2} s", nanoseconds / 1e9)
    } else if nanoseconds >= 1e6 {
        format!("{:.2} ms", nanoseconds / 1e6)
    } else {
        format!("{:.1} us", nanoseconds / 1e3)
    }
}

/// A number for arithmetic on rates, where the 53 bits of a double are enough.
#[expect(clippy::cast_precision_loss, reason = "rates and shares, shown with a few digits")]
pub(crate) fn to_f64(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_written() {
        let cases: &[(&str, u64)] = &[
            ("0", 0),
            ("4096", 4096),
            ("4k", 4096),
            ("4K", 4096),
            ("4KiB", 4096),
            ("4 KiB", 4096),
            ("4kB", 4000),
            ("1MiB", 1 << 20),
            ("1m", 1 << 20),
            ("3MB", 3_000_000),
            ("2G", 2 << 30),
            ("1T", 1 << 40),
            ("17b", 17),
        ];
        for &(text, bytes) in cases {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "k", "-1", "4x", "1.5M", "99999999999999999999", "16777216T", "4 k k"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_are_read_as_written() {
        assert_eq!(parse_duration("10"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_duration("0"), Ok(Duration::ZERO));
        assert_eq!(parse_limit("1ms"), Ok(Duration::from_millis(1)));
        assert!(parse_limit("0ms").is_err());
        for text in ["", "s", "-1", "1d", "1.2.3", "1e3"] {
            assert!(parse_duration(text).is_err(), "{text}");
            assert!(parse_limit(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_are_shown_short() {
        assert_eq!(show_size(512), "512 B");
        assert_eq!(show_size(4096), "4 KiB");
        assert_eq!(show_size(1536), "1.50 KiB");
        assert_eq!(show_size(64 << 20), "64 MiB");
        assert_eq!(show_size((1 << 30) + (1 << 29)), "1.50 GiB");
        assert_eq!(show_count(950.4), "950");
        assert_eq!(show_count(12_345.0), "12.3k");
        assert_eq!(show_count(1_250_000.0), "1.25M");
        assert_eq!(show_latency(12_340.0), "12.3 us");
        assert_eq!(show_latency(2_500_000.0), "2.50 ms");
        assert_eq!(show_latency(3e9), "3.00 s");
        assert_eq!(show_rate(1.25e9), "1250.0 MB/s");
    }
}
