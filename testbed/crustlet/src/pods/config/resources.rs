//! The resources of a container, as kubelet computes them.

use crust_proto::cri::v1::LinuxContainerResources;
use k8s_openapi::api::core::v1::Container;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{ConfigError, NodeFacts};
use crate::objects::{Pod, quantity};

/// In microseconds: kubelet's `--cpu-cfs-quota-period`.
const PERIOD: i64 = 100_000;
/// The kernel's least quota, in microseconds.
const LEAST_QUOTA: i64 = 1000;
/// The least and the most shares that the kernel accepts.
const SHARES: (i64, i64) = (2, 262_144);

/// `status.qosClass`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Qos {
    /// Every request is also the limit.
    Guaranteed,
    /// Something is asked or limited.
    Burstable,
    /// Nothing is.
    BestEffort,
}

impl Qos {
    /// Returns the name in Kubernetes.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

/// A container's request and limit of something; what isn't asked for is what it is limited to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Amount {
    request: i64,
    limit: i64,
}

#[derive(Debug, Clone, Copy)]
enum Resource {
    /// In milli_value.
    Cpu,
    /// In bytes.
    Memory,
}

impl Amount {
    fn of(container: &Container, resource: Resource) -> Result<Self, ConfigError> {
        let (name, read): (_, fn(&str) -> Option<i64>) = match resource {
            Resource::Cpu => ("cpu", quantity::milli_value),
            Resource::Memory => ("memory", |text| quantity::bytes(text).ok()),
        };
        let amount = |Quantity(text): &Quantity| {
            read(text).ok_or_else(|| ConfigError::Amount {
                container: container.name.clone(),
                resource: name,
                amount: text.clone(),
            })
        };
        let resources = container.resources.as_ref();
        let limit = resources.and_then(|it| it.limits.as_ref()?.get(name));
        let limit = limit.map(amount).transpose()?;
        let request = resources.and_then(|it| it.requests.as_ref()?.get(name));
        let request = request.map(amount).transpose()?;
        Ok(Self {
            request: request.or(limit).unwrap_or(0),
            limit: limit.unwrap_or(0),
        })
    }
}

/// A pod's; amounts that are none are nothing asked.
pub(crate) fn qos(pod: &Pod) -> Qos {
    let amounts = pod.containers().flat_map(|container| {
        [Resource::Cpu, Resource::Memory].map(|it| Amount::of(container, it).unwrap_or_default())
    });
    let amounts: Vec<Amount> = amounts.collect();
    if amounts.iter().all(|it| *it == Amount::default()) {
        Qos::BestEffort
    } else if amounts
        .iter()
        .all(|it| it.limit > 0 && it.request == it.limit)
    {
        Qos::Guaranteed
    } else {
        Qos::Burstable
    }
}

/// A container's.
pub(super) fn container(
    pod: &Pod,
    node: &NodeFacts,
    container: &Container,
) -> Result<LinuxContainerResources, ConfigError> {
    let cpu = Amount::of(container, Resource::Cpu)?;
    let memory = Amount::of(container, Resource::Memory)?;
    let quota = cpu.limit.saturating_mul(PERIOD) / 1000;
    let limited = cpu.limit > 0;
    let shares = cpu.request.saturating_mul(1024) / 1000;
    Ok(LinuxContainerResources {
        cpu_period: if limited { PERIOD } else { 0 },
        cpu_quota: if limited { quota.max(LEAST_QUOTA) } else { 0 },
        cpu_shares: shares.clamp(SHARES.0, SHARES.1),
        memory_limit_in_bytes: memory.limit,
        oom_score_adj: oom_score(qos(pod), memory.request, node.memory),
    })
}

/// Returns the score by which the kernel chooses what to kill when memory is short: higher for small requests.
fn oom_score(qos: Qos, request: i64, memory: u64) -> i64 {
    const GUARANTEED: i64 = -997;
    const BEST_EFFORT: i64 = 1000;
    match qos {
        Qos::Guaranteed => GUARANTEED,
        Qos::BestEffort => BEST_EFFORT,
        Qos::Burstable => {
            let memory = i128::from(memory.max(1));
            let score = 1000 - 1000 * i128::from(request) / memory;
            i64::try_from(score)
                .unwrap_or(0)
                .clamp(1000 + GUARANTEED, BEST_EFFORT - 1)
        }
    }
}
