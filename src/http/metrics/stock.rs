//! Stock between the buckets of spread items.

use std::fmt::Error;

use super::{Labels, Sample, Writer, float};
use crate::shard::StockTraffic;

impl Sample {
    /// What this node, as leader of buckets, has moved, and who waited for it.
    pub(super) fn stock(&self, w: &mut Writer<'_>) -> Result<(), Error> {
        type Of = fn(&StockTraffic) -> u64;
        let one = |of: Of| [(Labels::new(), float(of(&self.status.stock)))];
        let counters: [(&str, &str, Of); 9] = [
            ("holdfast_stock_sends", "Transfers sent by buckets led here", |s| s.sends),
            ("holdfast_stock_units_sent", "Units in them", |s| s.units_sent),
            ("holdfast_stock_accepts", "Transfers accepted by buckets led here", |s| s.accepts),
            ("holdfast_stock_units_accepted", "Units in them", |s| s.units_accepted),
            ("holdfast_stock_pulls_empty", "Pulls of which no donor gave anything", |s| {
                s.pulls_empty
            }),
            ("holdfast_stock_collects", "Double collects over all buckets of an item", |s| {
                s.collects
            }),
            (
                "holdfast_stock_sold_out_verdicts",
                "Of those, the ones that found it sold out",
                |s| s.sold_out_verdicts,
            ),
            ("holdfast_stock_waits", "Placements that waited at a dry bucket", |s| s.waited),
            ("holdfast_stock_waits_in_vain", "Of those, the ones that were refused", |s| {
                s.waited_in_vain
            }),
        ];
        for (name, help, of) in counters {
            w.counters(name, help, one(of))?;
        }
        let gauges: [(&str, &str, Of); 2] = [
            ("holdfast_stock_waiting", "Placements that wait at dry buckets now", |s| s.waiting),
            (
                "holdfast_stock_in_transit",
                "Units that buckets led here have sent and do not know to be accepted",
                |s| s.in_transit,
            ),
        ];
        for (name, help, of) in gauges {
            w.gauges(name, help, one(of))?;
        }
        Ok(())
    }
}
