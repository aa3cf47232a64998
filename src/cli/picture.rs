//! Small pictures in text: bars, sizes, and the three lines of what is wrong.

/// Draws how much of a whole is taken: `████░░░░` for a half, in `width` columns.
pub(super) fn bar(part: u64, whole: u64, width: usize) -> String {
    let (part, whole) = (u128::from(part.min(whole)), u128::from(whole.max(1)));
    let filled = (part * width as u128).div_ceil(whole);
    let filled = usize::try_from(filled).unwrap_or(width).min(width);
    format!("{}{}", "█".repeat(filled), "░".repeat(width - filled))
}

/// Writes bytes in the unit that people read.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match UNITS.into_iter().find(|(_, shift)| bytes >> shift > 0) {
        Some((unit, shift)) => {
            let tenths = (u128::from(bytes) * 10) >> shift;
            format!("{}.{} {unit}", tenths / 10, tenths % 10)
        }
        None => format!("{bytes} B"),
    }
}

/// Writes a span of time in the unit that people read.
pub(super) fn span(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
        60_000..3_600_000 => format!("{} min", ms / 60_000),
        3_600_000..172_800_000 => format!("{} h", ms / 3_600_000),
        172_800_000.. => format!("{} d", ms / 86_400_000),
    }
}

/// Writes one thing that is wrong: what, why it matters, what to do about it.
pub(super) fn trouble(mark: &str, what: &str, why: &str, act: &str) -> String {
    format!("{mark} {what}\n    why  {why}\n    do   {act}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_shows_a_little_as_something_and_never_more_than_its_width() {
        assert_eq!(bar(0, 10, 4), "░░░░");
        assert_eq!(bar(1, 1_000, 4), "█░░░");
        assert_eq!(bar(5, 10, 4), "██░░");
        assert_eq!(bar(99, 10, 4), "████");
        assert_eq!(bar(0, 0, 2), "░░");
        assert_eq!(bar(u64::MAX, u64::MAX, 2), "██");
    }

    #[test]
    fn sizes_and_spans_are_in_the_unit_that_people_read() {
        assert_eq!([size(0), size(1_536), size(64 << 20)], ["0 B", "1.5 KiB", "64.0 MiB"]);
        assert_eq!([span(7), span(1_250), span(90_000)], ["7 ms", "1.2 s", "1 min"]);
        assert_eq!([span(7_200_000), span(259_200_000)], ["2 h", "3 d"]);
    }
}
