//! Chooses which texts are computed in one run of the graph.

/// The most tokens of a run of an encoder, with padding. A longer text is a run of its own.
pub const RUN_TOKENS: usize = 2048;

/// Which texts may share a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    /// Shorter texts are padded: the graph ignores the padding.
    Padded,
    /// Only texts of the same length.
    SameLength,
    /// None: the results of a text depend on the others of its run.
    Alone,
}

/// Groups texts by their lengths. Each group is a list of positions, the longest text first, and has at most
/// `max_tokens` tokens with padding, or one text. Less than half of a run is padding.
pub(super) fn group(lengths: &[usize], sharing: Sharing, max_tokens: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(lengths[*at]));
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for at in order {
        let fits = |group: &Vec<usize>| {
            let longest = lengths[group[0]];
            let may_share = match sharing {
                Sharing::Padded => lengths[at] > longest / 2,
                Sharing::SameLength => lengths[at] == longest,
                Sharing::Alone => false,
            };
            may_share && longest.saturating_mul(group.len() + 1) <= max_tokens
        };
        match groups.last_mut().filter(|group| fits(group)) {
            Some(group) => group.push(at),
            None => groups.push(vec![at]),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_bounded() {
        let check = |lengths: &[usize], sharing, expect: &[&[usize]]| {
            assert_eq!(group(lengths, sharing, RUN_TOKENS), expect, "{lengths:?}");
        };
        check(&[], Sharing::Padded, &[]);
        check(&[3, 5, 4], Sharing::Padded, &[&[1, 2, 0]]);
        check(&[3, 6, 4], Sharing::Padded, &[&[1, 2], &[0]]);
        check(&[3000, 2, 1024, 1024, 1024], Sharing::Padded, &[&[0], &[2, 3], &[4], &[1]]);
        check(&[3, 4, 3], Sharing::SameLength, &[&[1], &[0, 2]]);
        check(&[3, 3], Sharing::Alone, &[&[0], &[1]]);
    }
}
