//! What is left out of a seed's run, so that a failing one can be made small.
//!
//! Faults and decisions are numbered in the order in which they are drawn, and each is drawn from
//! randomness of its own: leaving one out changes nothing of what the others are. (It changes when
//! they meet what, so a smaller run may well not fail any more.)

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Which numbers are kept: all, or these. Written as `0-4,9`, or `none`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Keep(pub(crate) Option<BTreeSet<u32>>);

/// A disturbance that goes on all the time and can be left out as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Unease {
    /// Answers and requests that are lost or late.
    Impatience,
    /// A slow and spiky network.
    Wire,
    /// Tasks that let others go first.
    Unrest,
    /// Syncs that take their time.
    Sync,
    /// Checkpoints at every turn.
    Checkpoints,
}

impl Unease {
    pub(crate) const ALL: [Unease; 5] =
        [Unease::Impatience, Unease::Wire, Unease::Unrest, Unease::Sync, Unease::Checkpoints];

    fn word(self) -> &'static str {
        match self {
            Unease::Impatience => "impatience",
            Unease::Wire => "wire",
            Unease::Unrest => "unrest",
            Unease::Sync => "sync",
            Unease::Checkpoints => "checkpoints",
        }
    }
}

impl FromStr for Unease {
    type Err = String;

    fn from_str(text: &str) -> Result<Unease, String> {
        let found = Unease::ALL.into_iter().find(|one| one.word() == text);
        found.ok_or_else(|| {
            let words: Vec<_> = Unease::ALL.iter().map(|one| one.word()).collect();
            format!("{text:?} is none of {}", words.join(", "))
        })
    }
}

/// What is left out of a run. The default leaves nothing out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Cut {
    /// The faults that are kept.
    pub(crate) faults: Keep,
    /// The clients' decisions that are kept.
    pub(crate) decisions: Keep,
    /// How many clients there are.
    pub(crate) clients: Option<u64>,
    /// What is calm.
    pub(crate) calm: BTreeSet<Unease>,
    /// Another draw of what is drawn during the run, for the same plan.
    pub(crate) salt: u64,
}

impl Keep {
    /// Keeps these.
    pub(crate) fn only(numbers: impl IntoIterator<Item = u32>) -> Keep {
        Keep(Some(numbers.into_iter().collect()))
    }

    /// Tells whether a number is kept.
    pub(crate) fn has(&self, number: u32) -> bool {
        self.0.as_ref().is_none_or(|kept| kept.contains(&number))
    }

    /// Tells whether nothing from this number on is kept.
    pub(crate) fn is_over(&self, number: u32) -> bool {
        self.0.as_ref().is_some_and(|kept| kept.range(number..).next().is_none())
    }
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(kept) = &self.0 else { return f.write_str("all") };
        if kept.is_empty() {
            return f.write_str("none");
        }
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for number in kept {
            match ranges.last_mut() {
                Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
                Some(_) | None => ranges.push((*number, *number)),
            }
        }
        let words = ranges.iter().map(|(first, last)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        });
        f.write_str(&words.collect::<Vec<_>>().join(","))
    }
}

impl FromStr for Keep {
    type Err = String;

    fn from_str(text: &str) -> Result<Keep, String> {
        match text {
            "all" => return Ok(Keep(None)),
            "none" => return Ok(Keep::only([])),
            _ => {}
        }
        let number = |text: &str| {
            text.trim().parse::<u32>().map_err(|_| format!("{text:?} is not a number or a range"))
        };
        let mut kept = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            kept.extend(number(first)?..=number(last)?);
        }
        Ok(Keep(Some(kept)))
    }
}

impl fmt::Display for Cut {
    /// Writes it as the options of the command that replays it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.faults.0.is_some() {
            write!(f, " --faults {}", self.faults)?;
        }
        if self.decisions.0.is_some() {
            write!(f, " --decisions {}", self.decisions)?;
        }
        if let Some(clients) = self.clients {
            write!(f, " --clients {clients}")?;
        }
        if !self.calm.is_empty() {
            let words: Vec<_> = self.calm.iter().map(|one| one.word()).collect();
            write!(f, " --calm {}", words.join(","))?;
        }
        if self.salt > 0 {
            write!(f, " --salt {}", self.salt)?;
        }
        Ok(())
    }
}
