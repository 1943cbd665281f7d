//! Chooses the workers for a request: first those that have the model loaded, then those that have it on
//! disk, then the others. Within a class, the less loaded of two random workers comes first, so that replicas
//! with the same data do not all choose the same one. Pure: the caller passes the random numbers and the
//! load.

/// How many workers a request is tried on.
pub(crate) const MAX_TRIES: usize = 4;

/// How many more requests than on another worker a conversation accepts on its own worker, whose cache has
/// the start of its prompt.
const MAX_EXTRA_REQUESTS: usize = 4;

/// The workers to try, in order: at most `MAX_TRIES` positions in the worker table, those of the first class
/// first. `random(n)` is below `n`. Of two workers the one with the smaller load is tried first. The cost
/// does not depend on the number of workers.
pub(crate) fn rank_workers<L: Ord>(
    classes: &[&[usize]],
    mut random: impl FnMut(usize) -> usize,
    load: impl Fn(usize) -> L,
) -> Vec<usize> {
    let mut chosen: Vec<usize> = Vec::with_capacity(MAX_TRIES);
    for class in classes {
        // Twice as many as needed, so that each is chosen from two, plus as many as may be chosen already.
        let wanted = 2 * (MAX_TRIES - chosen.len()) + chosen.len();
        let mut sample = sample(class.len(), wanted, &mut random)
            .into_iter()
            .map(|at| class[at])
            .filter(|place| !chosen.contains(place))
            .collect::<Vec<_>>()
            .into_iter();
        let Some(mut kept) = sample.next() else { continue };
        for other in sample {
            let (better, worse) = if load(other) < load(kept) { (other, kept) } else { (kept, other) };
            chosen.push(better);
            kept = worse;
            if chosen.len() == MAX_TRIES {
                return chosen;
            }
        }
        chosen.push(kept);
        if chosen.len() == MAX_TRIES {
            return chosen;
        }
    }
    chosen
}

/// Tries `home`, the worker of a conversation, first, unless it has many more requests than the first choice.
pub(super) fn prefer_home(chosen: &mut Vec<usize>, home: usize, requests: impl Fn(usize) -> usize) {
    let is_overloaded =
        chosen.first().is_some_and(|first| requests(home) > requests(*first) + MAX_EXTRA_REQUESTS);
    if !is_overloaded {
        put_first(chosen, home);
    }
}

/// Tries this worker before the others.
pub(super) fn put_first(chosen: &mut Vec<usize>, at: usize) {
    chosen.retain(|other| *other != at);
    chosen.insert(0, at);
    chosen.truncate(MAX_TRIES);
}

/// Up to `wanted` different numbers below `count`, in random order.
fn sample(count: usize, wanted: usize, random: &mut impl FnMut(usize) -> usize) -> Vec<usize> {
    let mut picked: Vec<usize> = Vec::with_capacity(wanted.min(count));
    // Floyd's algorithm: one random number per pick, whatever `count` is.
    for last in count.saturating_sub(wanted)..count {
        let number = random(last + 1);
        let number = if picked.contains(&number) { last } else { number };
        picked.insert(random(picked.len() + 1), number);
    }
    picked
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small deterministic generator, so that the tests are repeatable.
    fn random(mut state: u64) -> impl FnMut(usize) -> usize {
        move |below| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        }
    }

    #[test]
    fn loaded_then_cached_then_the_less_loaded_of_the_others() {
        // Positions 0 and 1 have it loaded, 0 to 2 have it on disk, 3 and 4 have neither.
        let loads = [9, 3, 5, 1, 8];
        for seed in 0..100 {
            let classes: [&[usize]; 3] = [&[0, 1], &[0, 1, 2], &[0, 1, 2, 3, 4]];
            assert_eq!(rank_workers(&classes, random(seed), |at| loads[at]), [1, 0, 2, 3]);
        }
    }

    #[test]
    fn a_conversation_stays_on_its_worker_unless_it_is_overloaded() {
        for (requests, expect) in
            [([0, 4, 0], [1, 0, 2].as_slice()), ([0, 5, 0], &[0, 1, 2]), ([9, 9, 9], &[1, 0, 2])]
        {
            let mut chosen = vec![0, 1, 2];
            prefer_home(&mut chosen, 1, |at| requests[at]);
            assert_eq!(chosen, expect);
        }
        let mut chosen = vec![0, 1, 2, 3];
        prefer_home(&mut chosen, 7, |_| 0);
        assert_eq!(chosen, [7, 0, 1, 2]);
    }

    #[test]
    fn tries_are_capped_and_different() {
        for (count, expect) in [(0, 0), (1, 1), (3, 3), (4, 4), (10_000, MAX_TRIES)] {
            let all: Vec<usize> = (0..count).collect();
            for seed in 0..50 {
                let mut chosen = rank_workers(&[&all], random(seed), |at| at);
                assert_eq!(chosen.len(), expect);
                chosen.sort_unstable();
                chosen.dedup();
                assert_eq!(chosen.len(), expect);
                assert!(chosen.iter().all(|at| *at < count));
            }
        }
    }

    #[test]
    fn requests_spread_over_all_workers() {
        let (mut loads, mut random) = (vec![0_u32; 100], random(7));
        let all: Vec<usize> = (0..100).collect();
        for _ in 0..10_000 {
            let first = rank_workers(&[&all], &mut random, |at| loads[at])[0];
            loads[first] += 1;
        }
        // One random choice would leave some with 130 and others with 70.
        assert!(loads.iter().all(|load| (90..=110).contains(load)), "{loads:?}");
    }
}
