//! The pulls of the overview page: their number, and a bar for each day.

use crate::app::PullHistory;
use crate::hub::format::{counted, grouped};

/// The size of the picture in its own units.
const HEIGHT: u64 = 20;
const BAR_STEP: u64 = 3;

pub(super) struct Pulls {
    pub(super) text: String,
    /// Absent without recent pulls.
    pub(super) chart: Option<Chart>,
}

/// Bars for the last days, the oldest first.
pub(super) struct Chart {
    pub(super) width: u64,
    pub(super) bars: Vec<Bar>,
    /// For readers who do not see the picture.
    pub(super) description: String,
}

pub(super) struct Bar {
    pub(super) x: u64,
    pub(super) y: u64,
    pub(super) height: u64,
}

impl From<PullHistory> for Pulls {
    fn from(PullHistory { totals, days, .. }: PullHistory) -> Pulls {
        let text = format!(
            "{} in {} days, {} in total",
            grouped(totals.recent),
            days.len(),
            grouped(totals.all_time)
        );
        let most = days.iter().copied().max().unwrap_or_default();
        let today = days.last().copied().unwrap_or_default();
        let bar = |(at, pulls): (usize, &u64)| {
            // A day with few pulls differs from one without.
            let height = (pulls.saturating_mul(HEIGHT) / most.max(1)).max(u64::from(*pulls > 0));
            Bar { x: at as u64 * BAR_STEP, y: HEIGHT - height, height }
        };
        let chart = (most > 0).then(|| Chart {
            width: days.len() as u64 * BAR_STEP,
            bars: days.iter().enumerate().map(bar).filter(|bar| bar.height > 0).collect(),
            description: format!(
                "{} on the day with the most, {} today",
                counted(most, "pull", "pulls"),
                grouped(today)
            ),
        });
        Pulls { text, chart }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::PullTotals;

    #[test]
    fn each_day_with_pulls_has_a_bar() {
        let history = |days: &[u64]| {
            let recent = days.iter().sum();
            let totals = PullTotals { recent, all_time: recent + 1000 };
            PullHistory { totals, days: days.to_vec(), today: 20_000 }
        };
        let pulls = Pulls::from(history(&[0, 1, 1000, 500]));
        assert_eq!(pulls.text, "1,501 in 4 days, 2,501 in total");
        let chart = pulls.chart.unwrap();
        let bars: Vec<(u64, u64, u64)> = chart.bars.iter().map(|bar| (bar.x, bar.y, bar.height)).collect();
        assert_eq!((chart.width, bars), (12, vec![(3, 19, 1), (6, 0, 20), (9, 10, 10)]));
        assert_eq!(chart.description, "1,000 pulls on the day with the most, 500 today");
        assert!(Pulls::from(history(&[0, 0])).chart.is_none());
    }
}
