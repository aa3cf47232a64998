//! What `/metrics` says.

/// One reading of a node's metrics.
#[derive(Debug)]
pub(crate) struct Metrics(pub(crate) String);

impl Metrics {
    /// The sum of a metric over all label sets that contain every one of `labels`, written as
    /// `name="value"`.
    ///
    /// # Panics
    ///
    /// When there is no such line: a test that reads nothing proves nothing.
    pub(crate) fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        let of_name = self.0.lines().filter(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']))
        });
        let chosen: Vec<f64> = of_name
            .filter(|line| labels.iter().all(|label| line.contains(label)))
            .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
            .collect();
        assert!(!chosen.is_empty(), "no metric {name} with {labels:?}");
        chosen.iter().sum()
    }
}
