//! The ledger's answers in the words of the golden scripts.
//!
//! Promises: every field that a rule decides is printed. Never prints what no rule decides: the
//! wording of a rule, the log index of a hold's last change, the bits of a hold's id.

use holdfast::ledger::{
    Answer, Audit, Availability, BucketAudit, Configure, CopyState, Demand, Duty, Foreseen, Found,
    HoldId, HoldState, HoldView, ItemView, Levels, Mode, Receipt, Refusal, SoldOutItem, UnixMs,
};

/// How a script calls a hold.
pub(crate) type Naming<'a> = &'a dyn Fn(&HoldId) -> String;

/// Returns an answer as a script writes it.
pub(crate) fn answer(answer: &Answer, name: Naming) -> String {
    match answer {
        Answer::Placed(_) => unreachable!("shown with its placement"),
        Answer::Hold { hold, replayed } => view(hold, name) + replay_mark(*replayed),
        Answer::Item { item, created, replayed } => {
            item_view(item) + if *created { " created" } else { "" } + replay_mark(*replayed)
        }
        Answer::Retired { item } => format!("retired number={item}"),
        Answer::Voided { replayed } => "voided".to_string() + replay_mark(*replayed),
        Answer::Advanced { swept } => format!("advanced swept={swept}"),
        Answer::BucketOpen => "bucket open".to_string(),
        Answer::Moved { sent, sent_in_all, floor_sent, replayed } => {
            let again = if *replayed { " replayed" } else { "" };
            format!("moved S={sent} now S={sent_in_all} F={floor_sent}{again}")
        }
        Answer::Sent { sent, floor_sent } => format!("sent S={sent} F={floor_sent}"),
        Answer::Accepted { accepted } => format!("accepted R={accepted}"),
        Answer::Settled => "settled".to_string(),
        Answer::Copy(CopyState::Erased) => "copy erased".to_string(),
        Answer::Copy(CopyState::Applied { revision, mode: is, held, broken }) => {
            let broken = if *broken { " INVARIANT-BROKEN" } else { "" };
            format!("copy revision={revision} {} held={held}{broken}", mode(*is))
        }
        Answer::Noted => "noted".to_string(),
        Answer::Refused(refusal) => format!("refused {}", refused(refusal, name)),
    }
}

fn replay_mark(replayed: bool) -> &'static str {
    if replayed { " replayed" } else { "" }
}

fn refused(refusal: &Refusal, name: Naming) -> String {
    let moment = |at: &Option<UnixMs>| at.map_or("-".to_string(), |at| at.to_string());
    match refusal {
        Refusal::SoldOut { may_return } => format!("sold-out may_return={may_return}"),
        Refusal::InsufficientStock { available } => {
            format!("insufficient-stock available={available}")
        }
        Refusal::BuyerLimit { limit, held, sold } => {
            format!("buyer-limit limit={limit} held={held} sold={sold}")
        }
        Refusal::ItemPaused { reason } => format!("item-paused reason={}", reason.word()),
        Refusal::ItemClosed => "item-closed".to_string(),
        Refusal::SaleNotOpen { opens_at, closes_at } => {
            format!("sale-not-open opens={} closes={}", moment(opens_at), moment(closes_at))
        }
        Refusal::KeyVoided => "key-voided".to_string(),
        Refusal::KeyReused { field } => format!("key-reused field={field}"),
        Refusal::HoldExpired { hold } => format!("hold-expired: {}", view(hold, name)),
        Refusal::HoldConfirmed { hold } => format!("hold-confirmed: {}", view(hold, name)),
        Refusal::HoldReleased { hold } => format!("hold-released: {}", view(hold, name)),
        Refusal::NotSold { hold } => format!("not-sold: {}", view(hold, name)),
        Refusal::ExtendBudgetSpent { extends_used, latest } => {
            format!("extend-budget-spent used={extends_used} latest={latest}")
        }
        Refusal::Invalid { field, rule: _ } => format!("invalid field={field}"),
        Refusal::ItemNotFound => "item-not-found".to_string(),
        Refusal::RegionNotFound => "region-not-found".to_string(),
        Refusal::HoldNotFound => "hold-not-found".to_string(),
        Refusal::StockCommitted { needed, available, held, sold } => {
            format!("stock-committed needed={needed} available={available} held={held} sold={sold}")
        }
        Refusal::OpenHolds { held } => format!("open-holds held={held}"),
        Refusal::UseAdjustments { total } => format!("use-adjustments total={total}"),
        Refusal::RevisionMismatch { revision: _ } => "revision-mismatch".to_string(),
        Refusal::NotOwner => "not-owner".to_string(),
        Refusal::TransferRefused { rule: _ } => "transfer-refused".to_string(),
        Refusal::UnderWay { operation } => {
            format!("under-way operation={operation:?}").to_lowercase()
        }
        Refusal::NotUnderWay => "not-under-way".to_string(),
        Refusal::NotAnswered { shards } => {
            let shards: Vec<String> = shards.iter().map(ToString::to_string).collect();
            format!("not-answered shards={}", shards.join(","))
        }
        Refusal::LowerInSteps => "lower-in-steps".to_string(),
    }
}

/// Returns a hold as a script writes it.
pub(crate) fn view(hold: &HoldView, name: Naming) -> String {
    let mut text = format!(
        "{} {} qty={} sold={} expires={}",
        name(&hold.id),
        hold.state.word(),
        hold.quantity,
        hold.sold,
        hold.expires_at
    );
    if hold.state == HoldState::Held {
        text += &format!(" left={}", hold.extends_left);
    }
    if let Some(buyer) = &hold.buyer {
        text += &format!(" buyer={buyer}");
    }
    if hold.region != "default" {
        text += &format!(" region={}", hold.region);
    }
    if let Some(reference) = &hold.reference {
        text += &format!(" ref={reference}");
    }
    text
}

/// Returns the word of a mode.
pub(crate) fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Open => "open",
        Mode::Paused => "paused",
        Mode::Closed => "closed",
    }
}

fn item_view(item: &ItemView) -> String {
    let limit = item.definition.limit_per_buyer;
    let mut text = format!("item number={} total={} {}", item.number, item.total, mode(item.mode));
    if let Some(limit) = limit {
        text += &format!(" limit={limit}");
    }
    if item.invariant_broken {
        text += " INVARIANT-BROKEN";
    }
    for (key, value) in &item.definition.metadata {
        text += &format!(" meta.{key}={value}");
    }
    text
}

/// Returns what was found as a script writes it, one line each.
pub(crate) fn found(found: &Found, name: Naming) -> Vec<String> {
    match found {
        Found::Hold(hold) => vec![view(hold, name)],
        Found::Receipt(Receipt::Committed(hold)) => vec![format!("committed {}", view(hold, name))],
        Found::Receipt(Receipt::Voided) => vec!["voided".to_string()],
        Found::Receipt(Receipt::Unknown) => vec!["unknown".to_string()],
        Found::Item(item) => vec![item_view(item)],
        Found::Items(items) => {
            items.iter().map(|item| format!("{} {}", item.name, item_view(item))).collect()
        }
        Found::Availability(stock) => availability(stock),
        Found::Audit(audit) => audit.buckets.iter().map(|b| audit_line(audit, b)).collect(),
        Found::Recount(recount) => {
            vec![format!("astray={} done={}", recount.astray.len(), recount.next.is_none())]
        }
        Found::Holds { holds, more } => {
            let mut lines: Vec<String> = holds.iter().map(|hold| view(hold, name)).collect();
            lines.sort();
            lines.push(format!("more={more}"));
            lines
        }
        Found::SoldOut(items) => items.iter().map(sold_out).collect(),
        Found::Levels(levels) => levels_lines(levels),
        Found::Copy(image) => vec![copy_image(image)],
        Found::Duties(duties) => duties.iter().map(duty).collect(),
        Found::Roster { roster, now: _ } => vec![format!("roster revision={}", roster.revision)],
        Found::NotFound => vec!["not-found".to_string()],
    }
}

fn levels_lines(levels: &Levels) -> Vec<String> {
    let home = match (levels.total, levels.layout_version) {
        (Some(total), Some(version)) => format!(" total={total} layout={version}"),
        _ => String::new(),
    };
    let head = format!("revision={} {}{home}", levels.revision, mode(levels.mode));
    let mut lines = vec![head];
    for b in &levels.buckets {
        let mut line = format!(
            "bucket {} region {}: free={} lendable={} held={} sold={} floor={} credits={}",
            b.bucket, b.region, b.free, b.lendable, b.held, b.sold, b.floor, b.credits
        );
        if b.earmarked > 0 {
            line += &format!(" earmarked={}", b.earmarked);
        }
        if !b.is_settled() {
            line += &format!(" in_transit={}", b.in_transit);
        }
        for p in &b.pairs {
            line += &format!("; with {}: S={} A={} R={}", p.peer, p.sent, p.acked, p.accepted);
            if p.floor_sent + p.floor_accepted > 0 {
                line += &format!(" F={} RF={}", p.floor_sent, p.floor_accepted);
            }
        }
        lines.push(line);
    }
    lines
}

fn copy_image(image: &Configure) -> String {
    let regions = image.regions.iter().map(|region| {
        let marks = if region.closed { " closed" } else { "" };
        format!("{}/{}{marks}", region.name, region.floor)
    });
    let regions: Vec<String> = regions.collect();
    let buckets = image.layout.iter().map(|b| format!("{}:{}", b.bucket, b.region));
    let buckets: Vec<String> = buckets.collect();
    format!(
        "image revision={} {} regions {} buckets {}",
        image.revision,
        mode(image.mode),
        regions.join(", "),
        buckets.join(" ")
    )
}

fn duty(duty: &Duty) -> String {
    match duty {
        Duty::Deliver { accept, shard: _ } => format!(
            "deliver from={} to={} S={} F={}",
            accept.from, accept.to.bucket, accept.sent, accept.floor_sent
        ),
        Duty::Configure { shard: _, configure } => copy_image(configure),
        Duty::Erase { .. } => "erase".to_string(),
        Duty::Lower { begun, earmarked, needed, .. } => {
            format!("lower key={} earmarked={earmarked} needed={needed}", begun.key)
        }
        Duty::Delete { held, .. } => format!("delete held={held}"),
    }
}

fn sold_out(item: &SoldOutItem) -> String {
    let why = item.paused.map_or("sold-out", |reason| reason.word());
    format!("{} number={} {why} may_return={}", item.item, item.number, item.may_return)
}

fn availability(stock: &Availability) -> Vec<String> {
    let total = stock.total.map_or("-".to_string(), |total| total.to_string());
    stock
        .buckets
        .iter()
        .map(|b| {
            format!(
                "{} {} bucket {}: available={} held={} sold={} in_transit={} total={total}{}",
                mode(stock.mode),
                b.region,
                b.bucket,
                b.available,
                b.held,
                b.sold,
                b.in_transit_out,
                if b.earmarked > 0 { format!(" earmarked={}", b.earmarked) } else { String::new() }
            )
        })
        .collect()
}

fn audit_line(audit: &Audit, b: &BucketAudit) -> String {
    let accepted: u64 = b.accepted.iter().map(|(_, units)| units).sum();
    let sent: u64 = b.sent.iter().map(|(_, units)| units).sum();
    format!(
        "bucket {}: received {} + accepted {accepted} = available {} + held {} + sold {} + \
         written off {} + sent {sent}; due {}; total {}",
        b.bucket,
        b.received,
        b.available,
        b.held,
        b.sold,
        b.written_off,
        b.due,
        audit.total.map_or("-".to_string(), |total| total.to_string()),
    )
}

/// Returns what was foreseen as a script writes it.
pub(crate) fn foreseen(foreseen: &Foreseen, name: Naming) -> String {
    match foreseen {
        Foreseen::Answer(known) => format!("answer {}", answer(known, name)),
        Foreseen::Admit(Demand { bucket, quantity, free, buyer }) => {
            let mut text = format!("admit takes={quantity}");
            if bucket.is_some() {
                text += &format!(" free={free}");
            }
            if let Some((_, left)) = buyer {
                text += &format!(" buyer_left={left}");
            }
            text
        }
    }
}

/// Says whether a refusal is about stock or the buyer's limit.
pub(crate) fn is_about_stock(answer: &Answer) -> bool {
    let Answer::Refused(refusal) = answer else { return false };
    matches!(
        refusal,
        Refusal::SoldOut { .. } | Refusal::InsufficientStock { .. } | Refusal::BuyerLimit { .. }
    )
}
