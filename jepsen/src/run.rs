//! A run, from the inside of the walls: the cluster, the clients, the faults, the final reads, the
//! verdict.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use crate::check;
use crate::client::Patience;
use crate::cluster::{Cluster, Ground, Plan};
use crate::dice::Dice;
use crate::history::{Act, Kind, Value};
use crate::last;
use crate::nemesis::{Family, Fault, Nemesis};
use crate::observer::Observer;
use crate::options::Run;
use crate::prober::Prober;
use crate::profile::Profile;
use crate::progress;
use crate::race::{self, RUNNERS};
use crate::recorder::Recorder;
use crate::room::Room;
use crate::timeline;
use crate::verdict::{self, FaultCount, Judgement};
use crate::worker::{Shop, Unsettled, Worker};
use crate::workload::Workload;

/// What a client tells the nodes that it waits for, in ms.
const PATIENCE_MS: u64 = 900;
/// Of so many faults one comes with another.
const PAIRS_PERCENT: u64 = 30;
/// How long buyers race before the leader is killed, and how long it is dead.
const RACE_UNTIL_KILL: Duration = Duration::from_millis(150);
/// How long clients may take to end their turns.
const TURNS_END_WITHIN: Duration = Duration::from_secs(20);

/// What a run is to do.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    pub(crate) profile: Profile,
    pub(crate) seed: u64,
    pub(crate) ground: Ground,
    pub(crate) binary: PathBuf,
    pub(crate) scratch: PathBuf,
    pub(crate) out: PathBuf,
    /// Only these; all when empty.
    pub(crate) faults: Vec<Fault>,
    pub(crate) no_faults: bool,
    pub(crate) quiet: bool,
}

/// Everybody at work.
struct Staff {
    shop: Shop,
    clients: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    made: Arc<Mutex<Vec<Value>>>,
}

/// Runs and judges.
///
/// # Errors
///
/// When the run cannot even begin.
pub(crate) async fn run(order: &Order) -> Result<Judgement, String> {
    let history_file = order.out.join("history.jsonl");
    let recorder = Recorder::create(&history_file).map_err(|e| e.to_string())?;
    let recorder = Arc::new(recorder);
    let now = Arc::new(Mutex::new("starting the cluster".to_owned()));
    let whole = order.profile.faults_for + Duration::from_secs(20);
    let display = progress::show(Arc::clone(&recorder), Arc::clone(&now), whole, order.quiet);
    let display = tokio::spawn(display);
    let plan = Plan {
        binary: order.binary.clone(),
        nodes: order.profile.nodes,
        shards: order.profile.shards,
        ground: order.ground,
        scratch: order.scratch.clone(),
        out: order.out.clone(),
        seed: order.seed,
    };
    let mut cluster = Cluster::found(plan).await?;
    let mut nemesis = Nemesis::new(Dice::new(order.seed, "nemesis"), Arc::clone(&recorder));
    nemesis.now = Arc::clone(&now);
    let mut skipped = Vec::new();
    let worked = work(order, &mut cluster, &mut nemesis, &recorder, &mut skipped).await;
    cluster.end().await;
    display.abort();
    let history = recorder.finish()?;
    let report = check::judge(&history);
    let figures = verdict::count(&history, &report);
    let floors = verdict::floors(&figures, &report, &order.profile.floors);
    let harness = worked.err().or(nemesis.broken.clone());
    let judgement = Judgement {
        verdict: verdict::decide(&report, &floors, harness.as_deref()),
        harness,
        profile: order.profile.name.to_owned(),
        seed: order.seed,
        nodes: order.profile.nodes,
        ground: ground_words(order.ground, &cluster),
        skipped,
        figures,
        floors,
        faults: fault_counts(&nemesis),
        report,
    };
    let text = serde_json::to_string_pretty(&judgement).map_err(|e| e.to_string())?;
    write(&order.out.join("verdict.json"), &text)?;
    write(&order.out.join("timeline.html"), &timeline::draw(&history, Some(&judgement)))?;
    Ok(judgement)
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

fn ground_words(ground: Ground, cluster: &Cluster) -> String {
    match (ground, &cluster.net) {
        (Ground::Namespaces, Some(net)) => {
            format!("network namespaces, cuts by {:?}, disks {:?}", net.cutter, cluster.medium())
        }
        (Ground::Namespaces, None) | (Ground::Loopback, _) => {
            "ROOTLESS on the loopback: NO partitions, NO disk faults".to_owned()
        }
    }
}

fn fault_counts(nemesis: &Nemesis) -> BTreeMap<String, FaultCount> {
    let count = |(fault, score): (&Fault, &crate::nemesis::Score)| {
        let count = FaultCount {
            effective: score.effective,
            skipped: score.skipped,
            why_skipped: nemesis.reasons.get(fault).cloned(),
        };
        (fault.name().to_owned(), count)
    };
    nemesis.scores.iter().map(count).collect()
}

/// Everything between the founding of the cluster and its end.
async fn work(
    order: &Order,
    cluster: &mut Cluster,
    nemesis: &mut Nemesis,
    recorder: &Arc<Recorder>,
    skipped: &mut Vec<String>,
) -> Result<(), String> {
    // The prober, whoever reads at the end, and those who race come after the rooms' clients.
    let clients = order.profile.clients() + 2 + RUNNERS;
    let shop = Shop {
        roll: cluster.roll.clone(),
        recorder: Arc::clone(recorder),
        unsettled: Arc::new(Unsettled::default()),
        processes: Worker::processes(clients),
    };
    let worker = |number: u64, ms: u64| {
        let dice = Dice::new(order.seed, &format!("client {number}"));
        Worker::new(&shop, number, dice, Patience::of_ms(ms))
    };
    let mut prober =
        Prober::new(worker(clients - 2, 400), Arc::clone(recorder), cluster.plan.shards).await?;
    let mut reader = worker(clients - 1, 2_000);
    let mut items = Vec::new();
    if order.profile.racers > 0 && !order.no_faults {
        let runners = order.profile.clients()..order.profile.clients() + RUNNERS;
        let runners = runners.map(|number| worker(number, PATIENCE_MS)).collect();
        items.extend(race(order, cluster, nemesis, &mut prober, &mut reader, runners).await);
    }
    let rooms = offered(order, &mut reader, skipped).await;
    let watching = tokio::spawn(Observer::new(&cluster.roll, Arc::clone(recorder)).watch());
    let mut staff = Staff {
        shop: shop.clone(),
        clients: Vec::new(),
        stop: Arc::default(),
        made: Arc::default(),
    };
    hire(order, &rooms, &mut staff, worker);
    faults(order, cluster, nemesis, &mut prober, skipped).await;
    staff.stop.store(true, Ordering::Relaxed);
    let mut late = 0;
    for client in staff.clients {
        late += u64::from(tokio::time::timeout(TURNS_END_WITHIN, client).await.is_err());
    }
    nemesis.recover(cluster, &mut prober).await;
    watching.abort();
    let mut observer = Observer::new(&cluster.roll, Arc::clone(recorder));
    items.extend(staff.made.lock().expect("nobody panics with it").iter().cloned());
    items.extend(prober.made());
    let level = last::phase(&mut reader, &staff.shop, &mut observer, &items, &nemesis.now).await;
    match (late, level) {
        (0, None) => Ok(()),
        (0, Some(why)) => Err(why),
        (late, _) => Err(format!("{late} clients did not end their turns")),
    }
}

/// The great race, in which the leader is killed. Returns its item.
async fn race(
    order: &Order,
    cluster: &mut Cluster,
    nemesis: &mut Nemesis,
    prober: &mut Prober,
    reader: &mut Worker,
    runners: Vec<Worker>,
) -> Option<Value> {
    let item = race::prepare(reader).await?;
    let running = tokio::spawn(race::run(runners, item.clone(), order.profile.racers));
    tokio::time::sleep(RACE_UNTIL_KILL).await;
    nemesis.round(cluster, prober, &[Fault::KillLeader], RACE_UNTIL_KILL).await;
    let _ = running.await;
    Some(item)
}

/// The rooms whose workloads this version offers.
async fn offered(
    order: &Order,
    worker: &mut Worker,
    skipped: &mut Vec<String>,
) -> Vec<(Workload, u64)> {
    let mut rooms = Vec::new();
    let contract = worker.contract().await;
    for (workload, clients) in &order.profile.rooms {
        if let Some(path) = workload.needs()
            && !contract.contains(&format!("\"{path}\""))
        {
            let name = workload.name();
            skipped.push(format!("workload {name}: this version of Holdfast has no such call"));
            continue;
        }
        if workload.is_spread() {
            let asked = workload.definition(format!("offered-{}", workload.name()), 0);
            let made = worker.call(Act::Create, asked).await;
            if made.kind != Kind::Ok {
                let why = made.error.unwrap_or_default();
                skipped.push(format!("workload {}: Holdfast answers {why}", workload.name()));
                continue;
            }
        }
        rooms.push((*workload, *clients));
    }
    rooms
}

fn hire(
    order: &Order,
    rooms: &[(Workload, u64)],
    staff: &mut Staff,
    worker: impl Fn(u64, u64) -> Worker,
) {
    let mut number = 0;
    for (workload, clients) in rooms {
        let room = Room::new(*workload, 1, order.profile.pace, Arc::clone(&staff.made));
        let room = Arc::new(room);
        for _ in 0..*clients {
            let (room, stop) = (Arc::clone(&room), Arc::clone(&staff.stop));
            let mut worker = worker(number, PATIENCE_MS);
            number += 1;
            staff.clients.push(tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    if let Some(item) = room.item(&mut worker).await {
                        room.workload.turn(&room, &mut worker, &item).await;
                    }
                    worker.idle(room.pace.idle).await;
                }
            }));
        }
    }
}

/// Makes faults until the time is over: each kind once, in an order that the seed draws, then any.
async fn faults(
    order: &Order,
    cluster: &mut Cluster,
    nemesis: &mut Nemesis,
    prober: &mut Prober,
    skipped: &mut Vec<String>,
) {
    let wanted = |fault: &Fault| order.faults.is_empty() || order.faults.contains(fault);
    let mut possible = Vec::new();
    for fault in Fault::ALL.iter().copied().filter(wanted) {
        match fault.lacks(cluster) {
            Some(why) => {
                nemesis.skip(fault, &why);
                skipped.push(format!("fault {}: {why}", fault.name()));
            }
            None => possible.push(fault),
        }
    }
    let began = Instant::now();
    let mut dice = Dice::new(order.seed, "schedule");
    let mut next: Vec<Fault> = Vec::new();
    tokio::time::sleep(Duration::from_secs(2)).await;
    while began.elapsed() < order.profile.faults_for && !nemesis.halted {
        if possible.is_empty() || order.no_faults {
            tokio::time::sleep(Duration::from_millis(200)).await;
            continue;
        }
        if next.is_empty() {
            next.clone_from(&possible);
            dice.shuffle(&mut next);
        }
        let first = next.pop().expect("it was filled");
        let mut round = vec![first];
        if dice.percent(PAIRS_PERCENT) {
            let partners: Vec<Fault> =
                possible.iter().copied().filter(|other| first.goes_with(*other)).collect();
            round.extend(dice.pick(&partners));
        }
        // An operation waits for a network that is cut: it comes first. What is cut is shown by a
        // connection that cannot be opened, while all nodes run: that comes before a kill.
        round.sort_by_key(|fault| match fault.family() {
            Family::Members => 0,
            Family::Network => 1,
            Family::Process | Family::Clock | Family::Disk | Family::Rest => 2,
        });
        let (least, most) = order.profile.fault_lasts;
        let lasts = span(&mut dice, least, most);
        nemesis.round(cluster, prober, &round, lasts).await;
        let (least, most) = order.profile.calm;
        tokio::time::sleep(span(&mut dice, least, most)).await;
    }
}

fn span(dice: &mut Dice, least: Duration, most: Duration) -> Duration {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(dice.between(ms(least), ms(most)))
}

/// Reads the names on the command line.
///
/// # Errors
///
/// With the names that there are.
pub(crate) fn named_faults(run: &Run) -> Result<(Vec<Fault>, bool), String> {
    if run.faults.iter().any(|name| name == "none") {
        return Ok((Vec::new(), true));
    }
    let mut faults = Vec::new();
    for name in &run.faults {
        let known: Vec<&str> = Fault::ALL.iter().map(|fault| fault.name()).collect();
        let fault = Fault::named(name);
        faults.push(fault.ok_or(format!("no fault `{name}`; there are {}", known.join(", ")))?);
    }
    Ok((faults, false))
}

/// Reads the names on the command line.
///
/// # Errors
///
/// With the names that there are.
pub(crate) fn named_workloads(run: &Run, profile: &mut Profile) -> Result<(), String> {
    if run.workloads.is_empty() {
        return Ok(());
    }
    let known: Vec<&str> = Workload::ALL.iter().map(|workload| workload.name()).collect();
    if let Some(name) = run.workloads.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("no workload `{name}`; there are {}", known.join(", ")));
    }
    profile.rooms.retain(|(workload, _)| run.workloads.iter().any(|n| n == workload.name()));
    Ok(())
}
