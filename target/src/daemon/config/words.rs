//! How the words of a configuration look in errors, and which are alike. Called by `reader`.

use config::ValueKind;

/// A path without indices, as tables are named in TOML.
pub(super) fn plain(path: &str) -> String {
    let mut inside = false;
    path.chars()
        .filter(|c| {
            inside |= *c == '[';
            let keep = !inside;
            inside &= *c != ']';
            keep
        })
        .collect()
}

/// A value as an error shows it.
pub(super) fn shown(kind: &ValueKind) -> String {
    match kind {
        ValueKind::Nil => "nothing".to_owned(),
        ValueKind::String(text) => format!("{text:?}"),
        ValueKind::Table(_) => "a table".to_owned(),
        ValueKind::Array(_) => "a list".to_owned(),
        // With its point, which `Display` leaves out.
        ValueKind::Float(number) => format!("{number:?}"),
        other => other.to_string(),
    }
}

/// Whether one word is the other with a letter more, less or changed, or with two of them swapped.
pub(super) fn is_slip(one: &str, other: &str) -> bool {
    let letters = |word: &str| {
        let mut letters: Vec<char> = word.chars().collect();
        letters.sort_unstable();
        letters
    };
    match distance(one, other) {
        0 | 1 => true,
        2 => letters(one) == letters(other),
        _ => false,
    }
}

/// Edits (insertions, deletions, replacements) between two words.
pub(super) fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, from) in one.chars().enumerate() {
        let mut next = vec![at + 1];
        let mut left = at + 1;
        for (to, pair) in other.iter().zip(row.windows(2)) {
            let &[diagonal, above] = pair else { continue };
            left = (left + 1).min(above + 1).min(diagonal + usize::from(from != *to));
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_told_from_another_word() {
        for (one, other) in [("nsid", "nsdi"), ("nsid", "nsi"), ("nsid", "nssid"), ("nsid", "nsie")]
        {
            assert!(is_slip(one, other), "{one} {other}");
        }
        for (one, other) in [("nsid", "uuid"), ("nsid", "nqn"), ("path", "size"), ("nsid", "")] {
            assert!(!is_slip(one, other), "{one} {other}");
        }
    }

    #[test]
    fn words_have_distances() {
        assert_eq!(distance("address", "adress"), 1);
        assert_eq!(distance("port", "prot"), 2);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", ""), 3);
        assert_eq!(distance("size", "size"), 0);
    }

    #[test]
    fn paths_lose_their_indices() {
        assert_eq!(plain("subsystem[0].namespace[12].backend"), "subsystem.namespace.backend");
    }
}
