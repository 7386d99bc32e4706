//! Which bytes a transfer may touch: offset, length and block size checked before anything moves.
//! Calls nothing; called by `copy`.

use anyhow::Result;
use lariat::Geometry;

use crate::failure::usage;
use crate::units::show_size;

/// A write, as far as it is known beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WritePlan {
    /// Most bytes to take from the input.
    pub(crate) limit: Option<u64>,
    /// Bytes that will come, if known.
    pub(crate) expected: Option<u64>,
    /// Bytes from the offset to the namespace's end.
    pub(crate) room: u64,
    /// Whether a last partial block is merged with what is there.
    pub(crate) pad: bool,
}

fn aligned(flag: &str, value: u64, geometry: Geometry) -> Result<()> {
    let block = u64::from(geometry.block_bytes);
    if value.is_multiple_of(block) {
        return Ok(());
    }
    let below = value - value % block;
    // An offset may be 0, a length of 0 would be nothing.
    let below = (below > 0 || flag == "--offset").then_some(below);
    let near = [below, (value - value % block).checked_add(block)];
    let near: Vec<String> = near.iter().flatten().map(u64::to_string).collect();
    let near = match near.as_slice() {
        [one] => format!("is {one}"),
        some => format!("are {}", some.join(" and ")),
    };
    Err(usage(format!(
        "{flag} {value} is not a multiple of the namespace's block size, {block} bytes; the nearest \
         {near}"
    )))
}

fn room(offset: u64, geometry: Geometry) -> Result<u64> {
    let capacity = geometry.capacity_bytes();
    aligned("--offset", offset, geometry)?;
    capacity.checked_sub(offset).filter(|&room| room > 0).ok_or_else(|| {
        usage(format!(
            "--offset {offset} is not within the namespace of {capacity} bytes ({})",
            show_size(capacity)
        ))
    })
}

fn beyond(flag: &str, length: u64, offset: u64, geometry: Geometry) -> anyhow::Error {
    let capacity = geometry.capacity_bytes();
    usage(format!(
        "{flag} of {length} bytes at --offset {offset} ends beyond the namespace of {capacity} bytes ({})",
        show_size(capacity)
    ))
}

/// The number of bytes to read.
pub(crate) fn of_read(offset: u64, length: Option<u64>, geometry: Geometry) -> Result<u64> {
    let room = room(offset, geometry)?;
    let length = length.unwrap_or(room);
    if length == 0 {
        return Err(usage("--length 0: there is nothing to read"));
    }
    aligned("--length", length, geometry)?;
    if length > room {
        return Err(beyond("--length", length, offset, geometry));
    }
    Ok(length)
}

/// What is known of a write of an input of `known` bytes.
pub(crate) fn of_write(
    offset: u64,
    limit: Option<u64>,
    known: Option<u64>,
    pad: bool,
    geometry: Geometry,
) -> Result<WritePlan> {
    let room = room(offset, geometry)?;
    if let (Some(limit), Some(known)) = (limit, known)
        && limit > known
    {
        return Err(usage(format!("--length {limit}: the input has only {known} bytes")));
    }
    let expected = limit.or(known);
    if let Some(expected) = expected {
        let flag = if limit.is_some() { "--length" } else { "an input" };
        if expected == 0 {
            return Err(usage(format!("{flag} of 0 bytes: there is nothing to write")));
        }
        if expected > room {
            return Err(beyond(flag, expected, offset, geometry));
        }
        if !pad && !expected.is_multiple_of(u64::from(geometry.block_bytes)) {
            return Err(partial(expected, geometry));
        }
    }
    Ok(WritePlan { limit, expected, room, pad })
}

/// The input does not end with a whole block.
pub(crate) fn partial(length: u64, geometry: Geometry) -> anyhow::Error {
    let block = u64::from(geometry.block_bytes);
    let rest = length % block;
    let without = match length - rest {
        0 => String::new(),
        whole => format!(", --length {whole} leaves them out"),
    };
    usage(format!(
        "the input of {length} bytes ends with {rest} bytes of a block of {block}; --pad keeps what \
         the rest of that block holds{without}"
    ))
}

#[cfg(test)]
mod tests {
    use lariat::Nsid;

    use super::*;

    const DISK: Geometry = Geometry { nsid: Nsid(1), block_bytes: 4096, blocks: 256 };
    const MIB: u64 = 1 << 20;

    fn words<T: core::fmt::Debug>(result: Result<T>) -> String {
        let error = result.unwrap_err();
        assert!(error.is::<crate::failure::Usage>(), "{error}");
        error.to_string()
    }

    #[test]
    fn reads() {
        assert_eq!(of_read(0, None, DISK).unwrap(), MIB);
        assert_eq!(of_read(4096, None, DISK).unwrap(), MIB - 4096);
        assert_eq!(of_read(MIB - 4096, Some(4096), DISK).unwrap(), 4096);
        let odd = words(of_read(5000, None, DISK));
        assert!(odd.contains("--offset 5000") && odd.contains("are 4096 and 8192"), "{odd}");
        let short = words(of_read(0, Some(100), DISK));
        assert!(short.contains("--length 100 is not a multiple"), "{short}");
        assert!(short.ends_with("the nearest is 4096"), "no length of 0: {short}");
        assert!(words(of_read(100, None, DISK)).ends_with("the nearest are 0 and 4096"));
        assert!(words(of_read(MIB, None, DISK)).contains("not within the namespace"));
        assert!(words(of_read(4096, Some(MIB), DISK)).contains("beyond the namespace"));
        assert!(words(of_read(0, Some(0), DISK)).contains("nothing to read"));
        assert!(words(of_read(u64::MAX, None, DISK)).contains("not a multiple"));
    }

    #[test]
    fn writes() {
        let plan = of_write(4096, None, Some(8192), false, DISK).unwrap();
        assert_eq!(
            plan,
            WritePlan { limit: None, expected: Some(8192), room: MIB - 4096, pad: false }
        );
        assert_eq!(of_write(0, None, None, false, DISK).unwrap().expected, None);
        assert_eq!(of_write(0, Some(4096), Some(5000), false, DISK).unwrap().expected, Some(4096));
        let odd = words(of_write(0, None, Some(5000), false, DISK));
        assert!(odd.contains("904 bytes of a block of 4096"), "{odd}");
        assert!(odd.contains("--pad") && odd.contains("--length 4096"), "{odd}");
        assert_eq!(of_write(0, None, Some(5000), true, DISK).unwrap().expected, Some(5000));
        assert!(
            words(of_write(0, None, Some(2 * MIB), false, DISK)).contains("an input of 2097152")
        );
        assert!(
            words(of_write(0, Some(8192), Some(4096), false, DISK)).contains("only 4096 bytes")
        );
        assert!(words(of_write(0, None, Some(0), false, DISK)).contains("nothing to write"));
    }
}
