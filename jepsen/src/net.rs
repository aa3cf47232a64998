//! The network of a run: a bridge in the suite's own network namespace, where the clients are, and
//! a namespace for each node. All of it vanishes with the suite's last process.
//!
//! A cut is a set of ordered pairs (from, to) whose packets vanish silently. With nftables it is a
//! bridge-family set, swapped atomically, with a counter; without, it is a neighbour entry with an
//! address that nobody has, which `ip` alone can write. Clients reach every node all the time.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::tool;

/// The port on which nodes serve HTTP.
pub(crate) const HTTP_PORT: u16 = 7101;
/// The port on which nodes hear each other.
pub(crate) const PEER_PORT: u16 = 7201;
/// How long a probe waits for a connection: within it a retransmission would have come.
const PROBE: Duration = Duration::from_millis(350);
/// The address that nobody has.
const NOWHERE: &str = "02:00:00:00:ff:ff";

/// An ordered pair of nodes: packets from the first to the second.
pub(crate) type Way = (u64, u64);

/// How packets are made to vanish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cutter {
    /// nftables, bridge family.
    Nft,
    /// Neighbour entries: cuts, but neither loss nor a counter.
    Neighbour,
}

/// The network.
#[derive(Debug, Clone)]
pub(crate) struct Net {
    nodes: BTreeSet<u64>,
    pub(crate) cutter: Cutter,
}

/// The address of a node in its namespace.
pub(crate) fn address(node: u64) -> Ipv4Addr {
    let last = u8::try_from(node).expect("a few nodes");
    Ipv4Addr::new(10, 77, 0, last)
}

fn mac(node: u64) -> String {
    format!("02:00:00:00:00:{node:02x}")
}

/// The name of a node's namespace.
pub(crate) fn namespace(node: u64) -> String {
    format!("n{node}")
}

impl Net {
    /// Lays the network. The caller is in namespaces of its own (see `sandbox`).
    ///
    /// # Errors
    ///
    /// When `ip` fails; with its words.
    pub(crate) async fn lay(nodes: u64) -> Result<Net, String> {
        tool::run("mkdir", &["-p", "/run/netns"]).await?;
        tool::run("mount", &["-t", "tmpfs", "tmpfs", "/run/netns"]).await?;
        let words = "link set lo up\nlink add hfbr type bridge\nlink set hfbr up\n\
             addr add 10.77.0.254/24 dev hfbr\n";
        tool::feed("ip", &["-batch", "-"], words).await?;
        let mut net = Net { nodes: BTreeSet::new(), cutter: Cutter::Neighbour };
        for node in 1..=nodes {
            net.connect(node).await?;
        }
        if tool::is_there("nft") && tool::feed("nft", &["-f", "-"], NFT_TABLE).await.is_ok() {
            net.cutter = Cutter::Nft;
        } else {
            net.cut(&BTreeSet::new()).await?;
        }
        Ok(net)
    }

    /// Gives a machine a namespace of its own, and connects it.
    ///
    /// # Errors
    ///
    /// When `ip` fails; with its words.
    pub(crate) async fn connect(&mut self, node: u64) -> Result<(), String> {
        tool::run("ip", &["netns", "add", &namespace(node)]).await?;
        let words = format!(
            "link add v{node} type veth peer name eth0 netns n{node}\n\
             link set v{node} master hfbr\nlink set v{node} up\n"
        );
        tool::feed("ip", &["-batch", "-"], &words).await?;
        let words = format!(
            "link set lo up\nlink set eth0 address {}\naddr add {}/24 dev eth0\n\
             link set eth0 up\n",
            mac(node),
            address(node)
        );
        tool::feed("ip", &["-n", &namespace(node), "-batch", "-"], &words).await?;
        self.nodes.insert(node);
        Ok(())
    }

    /// Takes a machine away, with its namespace.
    ///
    /// # Errors
    ///
    /// When `ip` fails; with its words.
    pub(crate) async fn disconnect(&mut self, node: u64) -> Result<(), String> {
        self.nodes.remove(&node);
        tool::run("ip", &["netns", "del", &namespace(node)]).await.map(drop)
    }

    /// Where a node serves HTTP.
    pub(crate) fn http(node: u64) -> SocketAddr {
        SocketAddr::new(IpAddr::V4(address(node)), HTTP_PORT)
    }

    /// Makes exactly these ways vanish.
    ///
    /// # Errors
    ///
    /// When the tool fails.
    pub(crate) async fn cut(&self, ways: &BTreeSet<Way>) -> Result<(), String> {
        match self.cutter {
            Cutter::Nft => {
                let mut words = String::from("flush set bridge hfj cut\n");
                let pair = |(from, to): &Way| format!("{} . {}", address(*from), address(*to));
                if !ways.is_empty() {
                    let pairs: Vec<String> = ways.iter().map(pair).collect();
                    let pairs = pairs.join(", ");
                    words.push_str(&format!("add element bridge hfj cut {{ {pairs} }}\n"));
                }
                tool::feed("nft", &["-f", "-"], &words).await.map(drop)
            }
            Cutter::Neighbour => {
                for from in self.nodes.iter().copied() {
                    let mut words = String::new();
                    for to in self.nodes.iter().copied().filter(|to| *to != from) {
                        let lladdr =
                            if ways.contains(&(from, to)) { NOWHERE.to_owned() } else { mac(to) };
                        words.push_str(&format!(
                            "neigh replace {} lladdr {lladdr} dev eth0 nud permanent\n",
                            address(to)
                        ));
                    }
                    tool::feed("ip", &["-n", &namespace(from), "-batch", "-"], &words).await?;
                }
                Ok(())
            }
        }
    }

    /// Makes so many of a hundred packets between nodes vanish; 0 ends it.
    ///
    /// # Errors
    ///
    /// When there is no nftables.
    pub(crate) async fn lose(&self, percent: u64) -> Result<(), String> {
        if self.cutter != Cutter::Nft {
            return Err("packet loss needs nftables".to_owned());
        }
        let mut words = String::from("flush chain bridge hfj loss\n");
        if percent > 0 {
            words.push_str(&format!(
                "add rule bridge hfj loss numgen random mod 100 < {percent} counter drop\n"
            ));
        }
        tool::feed("nft", &["-f", "-"], &words).await.map(drop)
    }

    /// How many packets have vanished by now, as far as it is counted.
    pub(crate) async fn vanished(&self) -> Option<u64> {
        if self.cutter != Cutter::Nft {
            return None;
        }
        let said = tool::run("nft", &["list", "table", "bridge", "hfj"]).await.ok()?;
        let mut words = said.split_whitespace();
        let mut sum = 0;
        while let Some(word) = words.next() {
            if word == "packets" {
                sum += words.next()?.parse::<u64>().ok()?;
            }
        }
        Some(sum)
    }

    /// Whether one node can open a connection to another.
    pub(crate) async fn reaches(&self, from: u64, to: u64) -> bool {
        let suite = std::env::current_exe().expect("this program has a path");
        let suite = suite.to_string_lossy().into_owned();
        let place = format!("--net=/run/netns/{}", namespace(from));
        let target = Net::http(to).to_string();
        let within = PROBE.as_millis().to_string();
        tool::run("nsenter", &[&place, &suite, "touch", &target, "--within-ms", &within])
            .await
            .is_ok()
    }
}

/// The newline after each `drop` is needed.
const NFT_TABLE: &str = "
table bridge hfj {
    set cut { type ipv4_addr . ipv4_addr; }
    chain loss {
    }
    chain f {
        type filter hook forward priority 0; policy accept;
        ip saddr . ip daddr @cut counter drop
        meta protocol ip jump loss
    }
}
";
