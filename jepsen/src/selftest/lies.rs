//! Lies: changes of a valid history, each of which breaks one property for certain. A lie says
//! `None` when this history gives no occasion for it.

use std::collections::BTreeMap;

use crate::check::Property;
use crate::check::book::FINAL;
use crate::dice::Dice;
use crate::history::{Act, Event, History, Kind, Process, Row, Standing, Value};
use crate::workload::LONG_MS;

/// A name and a change.
pub(super) type Lie = (&'static str, fn(&mut History, &mut Dice) -> Option<()>);

/// The lies about a property.
pub(super) fn about(property: Property) -> Vec<Lie> {
    match property {
        Property::OneKeyOneHold => {
            vec![("a replay shows another hold", other_hold), ("two keys share a hold", shared)]
        }
        Property::RefusedLeftNothing => {
            vec![("a refused key has a hold", refused_has), ("a hold comes from nowhere", phantom)]
        }
        Property::VoidIsFinal => vec![("a key with a hold is voided", voided)],
        Property::NothingLost => {
            vec![("a hold is gone", gone), ("a sold hold is held again", undone)]
        }
        Property::HoldEndsOnce => vec![("a released hold is sold", sold_again)],
        Property::NoConfirmAfterExpiry => {
            vec![("the deadline was long ago", late), ("an expired hold is sold", revived)]
        }
        Property::NeverOversold => vec![("more is sold than there is", oversold)],
        Property::Conservation => {
            vec![("a unit too many", one_more), ("the audit complains", complaint)]
        }
        Property::BuyerLimit => vec![("the limit was lower", lower_limit)],
        Property::OneLeaderPerIndex => vec![("another node led there", two_leaders)],
        Property::LeadersInOrder => vec![("a later leader came first", leaders_back)],
        Property::RealTimeOrder => vec![("an answer rests on the past", from_the_past)],
        Property::LedgerTime => vec![("a placement comes from the future", time_back)],
        Property::Replay => {
            vec![("a read forgets sales", forgets), ("sold out beside stock", false_sold_out)]
        }
        Property::DigestsEqual => vec![("a replica has another digest", other_digest)],
        Property::ReplicasAgree => {
            vec![("a replica lacks a hold", lacks), ("a replica has another state", differs)]
        }
        Property::Recovers => {
            vec![("it took eleven seconds", slow), ("a node never came back", never)]
        }
        Property::DamageStaysOut => vec![("the damaged node served", served)],
        Property::OperationsEnd => {
            vec![("an operation takes a minute", endless), ("it never ended", never_done)]
        }
        Property::MembersAgree => {
            vec![("a node lists one more", lists_more), ("a node lists nobody", lists_nobody)]
        }
        Property::DrainedLeadsNothing => {
            vec![("it led by its own word", drained_leads), ("it was elected", drained_elected)]
        }
        Property::RemovedServesNothing => vec![
            ("it never said so", removed_silent),
            ("it answered a client", removed_answers),
            ("it told a client what it knew", removed_refuses),
        ],
        Property::Linearizable => {
            vec![
                ("a read is stale", stale),
                ("a hold was refused", denied),
                ("a hold is unknown to its leader", unknown),
            ]
        }
    }
}

/// One of the places where something holds.
fn any(history: &History, dice: &mut Dice, holds: impl Fn(usize, &Event) -> bool) -> Option<usize> {
    let places: Vec<usize> = history
        .events
        .iter()
        .enumerate()
        .filter(|(at, e)| holds(*at, e))
        .map(|(at, _)| at)
        .collect();
    dice.pick(&places).copied()
}

fn final_at(history: &History) -> usize {
    let is_final = |event: &Event| event.value.note.as_deref() == Some(FINAL);
    history.events.iter().position(is_final).expect("every history ends with final reads")
}

/// A placement that made a hold.
fn fresh_place(event: &Event) -> bool {
    event.f == Act::Place && event.kind == Kind::Ok && event.value.replayed.is_none()
}

fn row(event: &Event) -> &Row {
    event.value.row.as_ref().expect("it was asked for")
}

fn row_mut(history: &mut History, at: usize) -> &mut Row {
    history.events[at].value.row.as_mut().expect("it was asked for")
}

/// The row of a hold in the leader's last list.
fn last_row(history: &History, id: &str) -> Option<Row> {
    let from = final_at(history);
    let lists = history.events[from..].iter().filter(|e| e.f == Act::Holds);
    let rows = lists.filter_map(|event| event.value.rows.as_ref()).flatten();
    rows.into_iter().find(|row| row.id == id).cloned()
}

/// Changes all last lists.
fn last_lists(history: &mut History, change: impl Fn(&mut Vec<Row>)) {
    let from = final_at(history);
    for event in history.events[from..].iter_mut().filter(|e| e.f == Act::Holds) {
        if let Some(rows) = event.value.rows.as_mut() {
            change(rows);
        }
    }
}

/// The definitions of the items.
fn definitions(history: &History) -> BTreeMap<String, Value> {
    let made = history.events.iter().filter(|e| e.f == Act::Create && e.kind == Kind::Ok);
    made.map(|e| (e.value.item.clone().expect("named"), e.value.clone())).collect()
}

fn is_timed(history: &History, event: &Event) -> bool {
    let item = event.value.item.as_deref().unwrap_or_default();
    definitions(history).get(item).is_some_and(|made| made.ttl_ms < Some(LONG_MS))
}

fn other_hold(history: &mut History, dice: &mut Dice) -> Option<()> {
    let at = any(history, dice, |_, e| fresh_place(e))?;
    row_mut(history, at).id = "hld_other".to_owned();
    Some(())
}

fn shared(history: &mut History, dice: &mut Dice) -> Option<()> {
    let at = any(history, dice, |_, e| fresh_place(e))?;
    let item = history.events[at].value.item.clone();
    let other = any(history, dice, |b, e| b != at && fresh_place(e) && e.value.item == item)?;
    let id = row(&history.events[other]).id.clone();
    row_mut(history, at).id = id;
    Some(())
}

/// A key that was only ever refused, with the item.
fn refused_key(history: &History, dice: &mut Dice) -> Option<(String, String)> {
    let slugs = ["sold-out", "insufficient-stock", "buyer-limit"];
    let at = any(history, dice, |_, e| {
        let refused = e.error.as_deref().is_some_and(|slug| slugs.contains(&slug));
        let key = e.value.key.as_deref();
        let others = history.events.iter().filter(|o| {
            o.value.key.as_deref() == key && o.value.item == e.value.item && o.kind != Kind::Invoke
        });
        e.f == Act::Place
            && refused
            && others.clone().all(|o| o.error.as_deref().is_some_and(|s| slugs.contains(&s)))
    })?;
    let value = &history.events[at].value;
    Some((value.item.clone()?, value.key.clone()?))
}

fn invented(item: &str, key: &str) -> Row {
    Row {
        id: format!("hld_{item}_{key}"),
        state: Standing::Held,
        quantity: 1,
        sold: 0,
        buyer: None,
        region: "default".to_owned(),
        reference: Some(key.to_owned()),
        placed_at: 0,
        expires_at: u64::MAX,
        revision: 1,
    }
}

fn add_to_lists(history: &mut History, item: &str, row: &Row) {
    let from = final_at(history);
    for event in history.events[from..].iter_mut().filter(|e| e.f == Act::Holds) {
        if let (Some(rows), true) =
            (event.value.rows.as_mut(), event.value.item.as_deref() == Some(item))
        {
            rows.push(row.clone());
        }
    }
}

fn refused_has(history: &mut History, dice: &mut Dice) -> Option<()> {
    let (item, key) = refused_key(history, dice)?;
    add_to_lists(history, &item, &invented(&item, &key));
    Some(())
}

fn phantom(history: &mut History, dice: &mut Dice) -> Option<()> {
    let names: Vec<String> = definitions(history).into_keys().collect();
    let item = dice.pick(&names)?.clone();
    add_to_lists(history, &item, &invented(&item, "a-key-that-nobody-used"));
    Some(())
}

fn voided(history: &mut History, dice: &mut Dice) -> Option<()> {
    let at = any(history, dice, |_, e| fresh_place(e))?;
    let end = final_at(history);
    let time = history.events[end].time;
    let placed = history.events[at].value.clone();
    let value =
        Value { item: placed.item, key: placed.key, buyer: placed.buyer, ..Value::default() };
    let event = |kind, value| Event {
        index: 0,
        time,
        kind,
        process: Process::Client(9_999_999),
        f: Act::Void,
        value,
        node: Some(1),
        commit: None,
        error: None,
    };
    let told = Value { receipt: Some("voided".to_owned()), ..value.clone() };
    history.events.insert(end, event(Kind::Ok, told));
    history.events.insert(end, event(Kind::Invoke, value));
    Some(())
}

fn gone(history: &mut History, dice: &mut Dice) -> Option<()> {
    let at = any(history, dice, |_, e| fresh_place(e))?;
    let id = row(&history.events[at]).id.clone();
    last_lists(history, |rows| rows.retain(|row| row.id != id));
    Some(())
}

fn undone(history: &mut History, dice: &mut Dice) -> Option<()> {
    let at = any(history, dice, |_, e| e.f == Act::Confirm && e.kind == Kind::Ok)?;
    let id = row(&history.events[at]).id.clone();
    last_lists(history, |rows| {
        for row in rows.iter_mut().filter(|row| row.id == id) {
            row.state = Standing::Held;
            row.revision += 1_000;
        }
    });
    Some(())
}

fn sold_again(history: &mut History, dice: &mut Dice) -> Option<()> {
    let at = any(history, dice, |_, e| e.f == Act::Release && e.kind == Kind::Ok)?;
    let id = row(&history.events[at]).id.clone();
    last_lists(history, |rows| {
        for row in rows.iter_mut().filter(|row| row.id == id) {
            row.state = Standing::Sold;
            row.sold = row.quantity;
            row.revision += 1_000;
        }
    });
    Some(())
}

fn late(history: &mut History, dice: &mut Dice) -> Option<()> {
    let at = any(history, dice, |_, e| {
        let confirmed = e.f == Act::Confirm && e.kind == Kind::Ok && e.value.replayed.is_none();
        let placed = |id: &str| {
            history.events.iter().any(|o| fresh_place(o) && row(o).id == id && o.commit.is_some())
        };
        confirmed && e.value.reacquire.is_none() && placed(&row(e).id)
    })?;
    let row = row_mut(history, at);
    row.expires_at = row.placed_at;
    Some(())
}

/// A late confirm that was refused is granted, though the hold was seen expired before.
fn revived(history: &mut History, dice: &mut Dice) -> Option<()> {
    let refused = |e: &Event| {
        e.f == Act::Confirm
            && e.error.as_deref() == Some("hold-expired")
            && e.value.reacquire.is_none()
    };
    let dead_before = |history: &History, e: &Event| {
        history.events.iter().any(|o| {
            let seen = o.kind == Kind::Ok && o.f != Act::Holds;
            let expired = o.value.row.as_ref().is_some_and(|row| {
                row.state == Standing::Expired && Some(&row.id) == e.value.hold.as_ref()
            });
            seen && expired && o.commit.map(|c| c.index) <= e.commit.map(|c| c.index)
        })
    };
    let at = any(history, dice, |_, e| refused(e) && dead_before(history, e))?;
    let id = history.events[at].value.hold.clone()?;
    let mut row = last_row(history, &id)?;
    row.state = Standing::Sold;
    row.sold = row.quantity;
    let event = &mut history.events[at];
    event.kind = Kind::Ok;
    event.error = None;
    event.value.row = Some(row);
    Some(())
}

fn stock_read(event: &Event) -> bool {
    event.f == Act::Stock && event.kind == Kind::Ok
}

fn oversold(history: &mut History, dice: &mut Dice) -> Option<()> {
    let at = any(history, dice, |_, e| stock_read(e))?;
    let value = &mut history.events[at].value;
    value.sold = value.total.map(|total| total + 1);
    Some(())
}

fn one_more(history: &mut History, dice: &mut Dice) -> Option<()> {
    let at = any(history, dice, |_, e| stock_read(e))?;
    let value = &mut history.events[at].value;
    value.available = value.available.map(|available| available + 1);
    Some(())
}

fn complaint(history: &mut History, dice: &mut Dice) -> Option<()> {
    let at = any(history, dice, |_, e| e.f == Act::Audit && e.kind == Kind::Ok)?;
    history.events[at].value.conserved = Some(false);
    Some(())
}

fn lower_limit(history: &mut History, dice: &mut Dice) -> Option<()> {
    let made = definitions(history);
    let (name, _) = made.iter().find(|(_, made)| made.limit.is_some())?;
    let from = final_at(history);
    let list = history.events[from..].iter().find(|e| {
        e.f == Act::Holds && e.kind == Kind::Ok && e.value.item.as_deref() == Some(name)
    })?;
    let mut has: BTreeMap<String, u64> = BTreeMap::new();
    for row in list.value.rows.iter().flatten() {
        let held = if row.state == Standing::Held { row.quantity } else { 0 };
        *has.entry(row.buyer.clone().unwrap_or_default()).or_default() += held + row.sold;
    }
    let most = has.values().copied().max().filter(|most| *most > 0)?;
    let limit = Some(dice.below(most));
    for event in history.events.iter_mut().filter(|e| e.f == Act::Create) {
        if event.value.item.as_deref() == Some(name) {
            event.value.limit = limit;
        }
    }
    Some(())
}

fn two_leaders(history: &mut History, dice: &mut Dice) -> Option<()> {
    let at = any(history, dice, |at, e| {
        let Some(commit) = e.commit else { return false };
        let same = |(b, o): (usize, &Event)| {
            b != at
                && o.kind != Kind::Info
                && o.commit.is_some_and(|c| (c.shard, c.index) == (commit.shard, commit.index))
        };
        history.events.iter().enumerate().any(same)
    })?;
    let commit = history.events[at].commit.as_mut()?;
    commit.node = commit.node % 3 + 1;
    Some(())
}

fn leaders_back(history: &mut History, dice: &mut Dice) -> Option<()> {
    let highest = |shard: u64| {
        let of = history.events.iter().filter_map(|e| e.commit).filter(|c| c.shard == shard);
        of.map(|c| c.index).max().unwrap_or(0)
    };
    let at = any(history, dice, |_, e| e.commit.is_some_and(|c| c.index < highest(c.shard)))?;
    let commit = history.events[at].commit?;
    for event in &mut history.events {
        if let Some(c) = event.commit.as_mut()
            && (c.shard, c.index) == (commit.shard, commit.index)
        {
            c.term += 1_000;
        }
    }
    Some(())
}

/// Operations with an answer: where they begin, where they end.
fn answered(history: &History) -> Vec<(usize, usize)> {
    let mut open: BTreeMap<Process, usize> = BTreeMap::new();
    let mut found = Vec::new();
    for (at, event) in history.events.iter().enumerate().filter(|(_, e)| e.f.is_call()) {
        if event.kind == Kind::Invoke {
            open.insert(event.process.clone(), at);
        } else if let Some(begin) = open.remove(&event.process)
            && event.commit.is_some()
        {
            found.push((begin, at));
        }
    }
    found
}

fn from_the_past(history: &mut History, dice: &mut Dice) -> Option<()> {
    let mut ops = answered(history);
    ops.retain(|(_, end)| history.events[*end].value.consistency.as_deref() != Some("local"));
    let (_, early) = *dice.pick(&ops)?;
    let commit = history.events[early].commit?;
    let later: Vec<(usize, usize)> = ops
        .into_iter()
        .filter(|(begin, end)| {
            let event = &history.events[*end];
            *begin > early
                && event.commit.is_some_and(|c| c.shard == commit.shard)
                && event.value.consistency.as_deref() != Some("local")
        })
        .collect();
    let (_, at) = *dice.pick(&later)?;
    history.events[at].commit.as_mut()?.index = commit.index.checked_sub(1)?;
    Some(())
}

fn time_back(history: &mut History, dice: &mut Dice) -> Option<()> {
    let at = any(history, dice, |_, e| {
        let later = |o: &Event| {
            fresh_place(o)
                && e.commit
                    .zip(o.commit)
                    .is_some_and(|(a, b)| a.shard == b.shard && a.index < b.index)
        };
        // Alone in its entry: another placement of it would tell the true time.
        let alone =
            history.events.iter().filter(|o| fresh_place(o) && o.commit == e.commit).count();
        fresh_place(e) && alone == 1 && history.events.iter().any(later)
    })?;
    row_mut(history, at).placed_at += 1_000_000;
    Some(())
}

/// A read shows as much available as if most had never been taken.
fn forgets(history: &mut History, dice: &mut Dice) -> Option<()> {
    let taken = |v: &Value| v.held.unwrap_or(0) + v.sold.unwrap_or(0);
    let at =
        any(history, dice, |_, e| stock_read(e) && taken(&e.value) >= 5 && !is_timed(history, e))?;
    let value = &mut history.events[at].value;
    value.available = value.total;
    (value.held, value.sold) = (Some(0), Some(0));
    Some(())
}

fn false_sold_out(history: &mut History, dice: &mut Dice) -> Option<()> {
    let at = any(history, dice, |_, e| {
        stock_read(e) && e.value.available >= Some(6) && !is_timed(history, e)
    })?;
    let read = history.events[at].clone();
    let value = Value {
        item: read.value.item.clone(),
        key: Some("turned-away".to_owned()),
        buyer: Some("stranger".to_owned()),
        quantity: Some(1),
        ..Value::default()
    };
    let event = |kind, value, error: Option<&str>| Event {
        kind,
        process: Process::Client(9_999_999),
        f: Act::Place,
        value,
        error: error.map(str::to_owned),
        commit: if kind == Kind::Fail { read.commit } else { None },
        ..read.clone()
    };
    let refused = Value { status: Some(409), ..value.clone() };
    history.events.insert(at, event(Kind::Fail, refused, Some("sold-out")));
    history.events.insert(at, event(Kind::Invoke, value, None));
    Some(())
}

fn other_digest(history: &mut History, dice: &mut Dice) -> Option<()> {
    let at = any(history, dice, |_, e| e.f == Act::Digest)?;
    history.events[at].value.digest = Some("0123456789abcdef".to_owned());
    Some(())
}

/// A replica's own last list that is not empty.
fn replica_list(history: &History, dice: &mut Dice) -> Option<usize> {
    any(history, dice, |_, e| {
        e.f == Act::Holds
            && e.value.consistency.as_deref() == Some("local")
            && e.value.rows.as_ref().is_some_and(|rows| !rows.is_empty())
    })
}

fn lacks(history: &mut History, dice: &mut Dice) -> Option<()> {
    let at = replica_list(history, dice)?;
    let rows = history.events[at].value.rows.as_mut()?;
    let gone = dice.index(rows.len());
    rows.remove(gone);
    Some(())
}

fn differs(history: &mut History, dice: &mut Dice) -> Option<()> {
    let at = replica_list(history, dice)?;
    let rows = history.events[at].value.rows.as_mut()?;
    let at = dice.index(rows.len());
    rows[at].state =
        if rows[at].state == Standing::Returned { Standing::Released } else { Standing::Returned };
    Some(())
}

fn slow(history: &mut History, dice: &mut Dice) -> Option<()> {
    let at = any(history, dice, |_, e| e.f == Act::Recovered && e.value.shard.is_some())?;
    history.events[at].value.recovery_ms = Some(11_000);
    Some(())
}

fn never(history: &mut History, dice: &mut Dice) -> Option<()> {
    let at = any(history, dice, |_, e| e.f == Act::Recovered)?;
    history.events[at].value.recovery_ms = None;
    Some(())
}

fn served(history: &mut History, dice: &mut Dice) -> Option<()> {
    let at = any(history, dice, |_, e| e.f == Act::FaultStart && e.value.stayed_out.is_some())?;
    history.events[at].value.stayed_out = Some(false);
    Some(())
}

fn endless(history: &mut History, dice: &mut Dice) -> Option<()> {
    let at = any(history, dice, |_, e| e.f == Act::Operation)?;
    history.events[at].value.recovery_ms = Some(60_000);
    Some(())
}

fn never_done(history: &mut History, dice: &mut Dice) -> Option<()> {
    let at = any(history, dice, |_, e| e.f == Act::Operation)?;
    history.events[at].value.recovery_ms = None;
    Some(())
}

fn lists_more(history: &mut History, dice: &mut Dice) -> Option<()> {
    let at = any(history, dice, |_, e| e.f == Act::Members)?;
    history.events[at].value.voters.as_mut()?.push(9);
    Some(())
}

fn lists_nobody(history: &mut History, dice: &mut Dice) -> Option<()> {
    let at = any(history, dice, |_, e| e.f == Act::Members)?;
    history.events[at].value.voters = None;
    Some(())
}

fn drained_leads(history: &mut History, dice: &mut Dice) -> Option<()> {
    let at = any(history, dice, |_, e| e.f == Act::Drained)?;
    history.events[at].value.leads = Some(1);
    Some(())
}

/// The observer sees the drained node lead, a second after it was drained.
fn drained_elected(history: &mut History, dice: &mut Dice) -> Option<()> {
    let at = any(history, dice, |_, e| e.f == Act::Drained && e.value.drained == Some(false))?;
    let node = history.events[at].node;
    let mut elected = history.events[at].clone();
    elected.f = Act::Leader;
    elected.value = Value { shard: Some(0), term: Some(9_999), leader: node, ..Value::default() };
    history.events.insert(at, elected);
    Some(())
}

fn removed_silent(history: &mut History, dice: &mut Dice) -> Option<()> {
    let at = any(history, dice, |_, e| e.f == Act::Removed)?;
    history.events[at].value.stayed_out = Some(false);
    Some(())
}

/// The end of an operation that was asked of a removed node.
fn asked_of_removed(history: &History, dice: &mut Dice) -> Option<usize> {
    let gone = history.events.iter().find(|e| e.f == Act::Removed)?;
    let (node, from) = (gone.node, gone.index);
    any(history, dice, |_, e| {
        e.f == Act::Stock && e.kind == Kind::Fail && e.node == node && e.index > from
    })
}

fn removed_answers(history: &mut History, dice: &mut Dice) -> Option<()> {
    let at = asked_of_removed(history, dice)?;
    let event = &mut history.events[at];
    (event.kind, event.error, event.value.status) = (Kind::Ok, None, Some(200));
    Some(())
}

fn removed_refuses(history: &mut History, dice: &mut Dice) -> Option<()> {
    let at = asked_of_removed(history, dice)?;
    let event = &mut history.events[at];
    (event.error, event.value.status) = (Some("sold-out".to_owned()), Some(409));
    Some(())
}

/// A read that begins after a sale was answered that stood to the end shows nothing sold.
fn stale(history: &mut History, dice: &mut Dice) -> Option<()> {
    let ops = answered(history);
    let sales: Vec<(usize, String, Option<String>)> = ops
        .iter()
        .filter_map(|(_, end)| {
            let event = &history.events[*end];
            let sold = event.f == Act::Confirm && event.kind == Kind::Ok;
            let id = event.value.row.as_ref().filter(|_| sold)?.id.clone();
            let stays = last_row(history, &id)?.state == Standing::Sold;
            stays.then(|| (*end, id, event.value.item.clone()))
        })
        .collect();
    let (sold_at, _, item) = dice.pick(&sales)?.clone();
    let reads: Vec<usize> = ops
        .into_iter()
        .filter(|(begin, end)| {
            let event = &history.events[*end];
            *begin > sold_at && stock_read(event) && event.value.item == item
        })
        .map(|(_, end)| end)
        .collect();
    let at = *dice.pick(&reads)?;
    let value = &mut history.events[at].value;
    value.available = value.available.zip(value.sold).map(|(left, sold)| left + sold);
    value.sold = Some(0);
    Some(())
}

/// A read of a hold finds nothing, though its placement was answered before.
fn unknown(history: &mut History, dice: &mut Dice) -> Option<()> {
    let mut looks = answered(history);
    looks.retain(|(begin, end)| {
        let event = &history.events[*end];
        let placed = |o: &Event| fresh_place(o) && row(o).id == row(event).id;
        event.f == Act::Hold
            && event.kind == Kind::Ok
            && history.events[..*begin].iter().any(placed)
    });
    let (_, at) = *dice.pick(&looks)?;
    let event = &mut history.events[at];
    event.kind = Kind::Fail;
    event.error = Some("not-found".to_owned());
    event.value.row = None;
    Some(())
}

/// The placement of a hold that was paid for is told as a refusal, and its key has no other answer.
fn denied(history: &mut History, dice: &mut Dice) -> Option<()> {
    let at = any(history, dice, |at, e| {
        let id = |o: &Event| o.value.row.as_ref().map(|row| row.id.clone());
        let same_key = |o: &Event| {
            o.f == Act::Place && o.value.key == e.value.key && o.value.item == e.value.item
        };
        let only = history.events.iter().enumerate().all(|(b, o)| {
            b == at || !same_key(o) || (o.kind == Kind::Invoke && o.process == e.process)
        });
        let paid = history
            .events
            .iter()
            .any(|o| o.f == Act::Confirm && o.kind == Kind::Ok && id(o) == id(e));
        fresh_place(e) && only && paid
    })?;
    let event = &mut history.events[at];
    event.kind = Kind::Fail;
    event.error = Some("sold-out".to_owned());
    event.value.row = None;
    Some(())
}
