//! Fixed ASCII fields as NVMe pads them: with spaces at the end (NVMe Base 2.1,
//! 1.4.2). Calls nothing; Identify and discovery log call it.

/// Writes `text` into the field: printable ASCII only, anything else becomes
/// `?`, what does not fit is cut, the rest is spaces.
pub fn write_padded(field: &mut [u8], text: &str) {
    field.fill(b' ');
    for (to, c) in field.iter_mut().zip(text.chars()) {
        let printable = u8::try_from(c).ok().filter(|byte| matches!(byte, 0x20..=0x7e));
        *to = printable.unwrap_or(b'?');
    }
}

/// A field with `text` in it, as [`write_padded`] does.
#[must_use]
pub fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [0; N];
    write_padded(&mut field, text);
    field
}

/// Reads a field: up to the first NUL, without trailing spaces; bytes that are
/// not printable ASCII come out as `?`.
#[must_use]
pub fn read_padded(field: &[u8]) -> String {
    let text: String = field
        .iter()
        .take_while(|&&byte| byte != 0)
        .map(|&byte| if matches!(byte, 0x20..=0x7e) { char::from(byte) } else { '?' })
        .collect();
    text.trim_end_matches(' ').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pads_cuts_and_replaces() {
        assert_eq!(&padded::<6>("ab"), b"ab    ");
        assert_eq!(&padded::<2>("abc"), b"ab");
        assert_eq!(&padded::<4>("a\u{e9}\n"), b"a?? ");
        assert_eq!(read_padded(b"Linux   "), "Linux");
        assert_eq!(read_padded(b"4420\0\0x"), "4420");
        assert_eq!(read_padded(b"\xff \x1b "), "? ?");
        assert_eq!(read_padded(b"    "), "");
    }
}
