//! The resources of a container, as kubelet computes them.

use crust_proto::cri::v1::LinuxContainerResources;
use k8s_openapi::api::core::v1::Container;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{ConfigError, NodeInfo};
use crate::objects::{Pod, quantity};

/// The period of CPU quotas in microseconds, which is the default of kubelet's `--cpu-cfs-quota-period`.
const CFS_PERIOD_US: i64 = 100_000;
/// The smallest CPU quota that the kernel accepts, in microseconds.
const MIN_CFS_QUOTA_US: i64 = 1000;
/// The smallest and the largest number of CPU shares that the kernel accepts.
const CPU_SHARES: (i64, i64) = (2, 262_144);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QosClass {
    /// All containers have limits for CPU and memory, and no smaller requests.
    Guaranteed,
    /// A container has a request or a limit.
    Burstable,
    /// No container has a request or a limit.
    BestEffort,
}

impl QosClass {
    /// Returns the value of `status.qosClass`.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

/// A container's request and limit of a resource. A missing limit is 0, and a missing request is the limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct ResourceAmount {
    request: i64,
    limit: i64,
}

#[derive(Debug, Clone, Copy)]
enum Resource {
    /// In thousandths of a CPU.
    Cpu,
    /// In bytes.
    Memory,
}

impl ResourceAmount {
    fn read(container: &Container, resource: Resource) -> Result<Self, ConfigError> {
        let (name, read): (_, fn(&str) -> Option<i64>) = match resource {
            Resource::Cpu => ("cpu", quantity::milli_value),
            Resource::Memory => ("memory", |text| quantity::bytes(text).ok()),
        };
        let amount = |Quantity(text): &Quantity| {
            read(text).ok_or_else(|| ConfigError::InvalidQuantity {
                container: container.name.clone(),
                resource: name,
                amount: text.clone(),
            })
        };
        let resources = container.resources.as_ref();
        let limit = resources.and_then(|resources| resources.limits.as_ref()?.get(name));
        let limit = limit.map(amount).transpose()?;
        let request = resources.and_then(|resources| resources.requests.as_ref()?.get(name));
        let request = request.map(amount).transpose()?;
        Ok(Self {
            request: request.or(limit).unwrap_or(0),
            limit: limit.unwrap_or(0),
        })
    }
}

/// Returns the `qosClass` of a pod. Quantities that can't be parsed count as missing.
pub(crate) fn qos_class(pod: &Pod) -> QosClass {
    let amounts = pod.containers().flat_map(|container| {
        [Resource::Cpu, Resource::Memory]
            .map(|resource| ResourceAmount::read(container, resource).unwrap_or_default())
    });
    let amounts: Vec<ResourceAmount> = amounts.collect();
    if amounts
        .iter()
        .all(|amount| *amount == ResourceAmount::default())
    {
        QosClass::BestEffort
    } else if amounts
        .iter()
        .all(|amount| amount.limit > 0 && amount.request == amount.limit)
    {
        QosClass::Guaranteed
    } else {
        QosClass::Burstable
    }
}

/// Returns the resources of a container.
pub(super) fn container(
    pod: &Pod,
    node: &NodeInfo,
    container: &Container,
) -> Result<LinuxContainerResources, ConfigError> {
    let cpu = ResourceAmount::read(container, Resource::Cpu)?;
    let memory = ResourceAmount::read(container, Resource::Memory)?;
    let quota = cpu.limit.saturating_mul(CFS_PERIOD_US) / 1000;
    let limited = cpu.limit > 0;
    let shares = cpu.request.saturating_mul(1024) / 1000;
    Ok(LinuxContainerResources {
        cpu_period: if limited { CFS_PERIOD_US } else { 0 },
        cpu_quota: if limited {
            quota.max(MIN_CFS_QUOTA_US)
        } else {
            0
        },
        cpu_shares: shares.clamp(CPU_SHARES.0, CPU_SHARES.1),
        memory_limit_in_bytes: memory.limit,
        oom_score_adj: oom_score(qos_class(pod), memory.request, node.memory),
    })
}

/// Returns `oom_score_adj`, as kubelet computes it. The kernel kills processes with a higher score first. The
/// less memory a burstable pod's container requests, the higher is its score.
fn oom_score(qos_class: QosClass, request: i64, memory: u64) -> i64 {
    const GUARANTEED: i64 = -997;
    const BEST_EFFORT: i64 = 1000;
    match qos_class {
        QosClass::Guaranteed => GUARANTEED,
        QosClass::BestEffort => BEST_EFFORT,
        QosClass::Burstable => {
            let memory = i128::from(memory.max(1));
            let score = 1000 - 1000 * i128::from(request) / memory;
            i64::try_from(score)
                .unwrap_or(0)
                .clamp(1000 + GUARANTEED, BEST_EFFORT - 1)
        }
    }
}
