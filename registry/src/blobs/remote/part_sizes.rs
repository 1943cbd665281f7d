//! The sizes of an upload's parts. The start of a part depends only on its number, so that another replica
//! continues an upload with the same boundaries. Sizes double every thousand parts. The ten thousand parts
//! that S3 allows total 5 TiB, its limit for one object.

const MIB: u64 = 1024 * 1024;
/// S3's minimum size of every part but the last.
const MIN_PART_BYTES: u64 = 5 * MIB;
const DOUBLES_EVERY: usize = 1000;
pub(super) const MAX_PARTS: usize = 10_000;

/// The size of the part with this number, counted from 0.
pub(super) fn size(part: usize) -> u64 {
    MIN_PART_BYTES << (part / DOUBLES_EVERY).min(MAX_PARTS / DOUBLES_EVERY)
}

/// The offset of the part with this number.
pub(super) fn start(part: usize) -> u64 {
    let (doublings, rest) = (part / DOUBLES_EVERY, part % DOUBLES_EVERY);
    let whole: u64 = (0..doublings).map(|step| DOUBLES_EVERY as u64 * size(step * DOUBLES_EVERY)).sum();
    whole + rest as u64 * size(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_next_to_each_other() {
        for part in 0..MAX_PARTS {
            assert_eq!(start(part + 1), start(part) + size(part), "{part}");
        }
        assert_eq!(
            (start(0), size(0), size(999), size(1000)),
            (0, MIN_PART_BYTES, MIN_PART_BYTES, 2 * MIN_PART_BYTES)
        );
    }

    #[test]
    fn ten_thousand_parts_hold_the_largest_object() {
        const TIB: u64 = 1 << 40;
        // S3's limits: 5 TiB per object, 5 GiB per part.
        assert!(start(MAX_PARTS) > 48 * TIB / 10 && start(MAX_PARTS) <= 5 * TIB);
        assert!(size(MAX_PARTS - 1) <= 5 << 30);
        // A blob of 100 GiB has parts of at most 80 MiB.
        let hundred = (0..MAX_PARTS).find(|part| start(*part) > 100 << 30).expect("100 GiB fit");
        assert!(size(hundred) <= 80 * MIB, "{hundred}");
    }
}
