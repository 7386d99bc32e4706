//! Identify: what the controller tells of itself and its namespaces (NVMe Base 2.1, 5.1.13; NVM
//! Command Set 1.1, 4.1.5). Called by `controller`.

use lariat_wire::nvme::identify::{
    Cmic, ControllerList, ControllerType, IdentifyIndependentNamespace, IdentifyNvmController,
    IdentifyNvmNamespace, IoCommandSets, NamespaceDescriptorWriter, Oncs, SglSupport,
};
use lariat_wire::nvme::{
    Cns, ControllerId, Csi, IDENTIFY_BYTES, IdentifyController, IdentifyNamespace,
    NamespaceDescriptor, NamespaceList, Nqn, Nsid, Status,
};

use super::abort::ABORT_LIMIT;
use super::admission;
use super::event::ASYNC_EVENT_LIMIT;
use super::feature;
use super::keep_alive::KEEP_ALIVE_UNITS;
use super::log::ERROR_ENTRIES;
use super::property::VERSION;
use super::registry::Registry;
use super::subsystem::{Namespace, PAGE_BYTES, Subsystem};

/// CTRATT: 128-bit host identifiers.
const HOST_ID_128: u32 = 1;
/// CTRATT: traffic keeps the controller alive (TBKAS).
const TRAFFIC_KEEP_ALIVE: u32 = 1 << 6;
/// ONCS: the Timestamp feature.
const ONCS_TIMESTAMP: u16 = 1 << 6;
/// FRMW: one firmware slot, read-only.
const ONE_FIRMWARE_SLOT: u8 = 0b0000_0011;
/// LPA: offsets and long lengths of log pages.
const LONG_LOG_PAGES: u8 = 1 << 2;
/// LPA: the same, and Commands Supported and Effects.
const LOG_ATTRIBUTES: u8 = LONG_LOG_PAGES | 1 << 1;
/// VWC bits 2:1: a flush may name all namespaces.
const FLUSH_ALL: u8 = 0b110;
/// OFCS: Disconnect is supported.
const DISCONNECT_SUPPORTED: u16 = 1;
/// NMIC and its like: several controllers reach the namespace.
const SHARED: u8 = 1;
/// NSFEAT: the preferred write and deallocate sizes count (OPTPERF).
const OPTIMAL_SIZES: u8 = 1 << 4;
/// DLFEAT: deallocated blocks read as zeroes, Write Zeroes may deallocate.
const DEALLOCATED_ZEROES: u8 = 0b0000_1001;
/// NSATTR: write protected.
const WRITE_PROTECTED: u8 = 1;
/// NSTAT: ready.
const NAMESPACE_READY: u8 = 1;
/// DCTYPE: a direct discovery controller.
const DIRECT_DISCOVERY: u8 = 1;

/// What an Identify asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) cns: Cns,
    pub(super) nsid: Nsid,
    pub(super) csi: Csi,
    pub(super) cntid: ControllerId,
}

/// Fills `data`, all of it.
pub(super) fn identify(
    subsystem: &Subsystem,
    registry: &Registry,
    id: ControllerId,
    request: Request,
    data: &mut [u8],
) -> Result<(), Status> {
    let Request { cns, nsid, csi, cntid } = request;
    let invalid = Err(Status::INVALID_FIELD.with_dnr());
    data.fill(0);
    if subsystem.is_discovery() && cns != Cns::CONTROLLER {
        return invalid;
    }
    let mut put = |bytes: &[u8; IDENTIFY_BYTES]| feature::write_start(data, bytes);
    match cns {
        Cns::NAMESPACE | Cns::ALLOCATED_NAMESPACE => {
            if let Some(namespace) = find(subsystem, nsid)? {
                put(namespace_data(namespace).as_bytes());
            }
        }
        Cns::CONTROLLER => put(controller_data(subsystem, id).as_bytes()),
        Cns::ACTIVE_NAMESPACE_LIST | Cns::ALLOCATED_NAMESPACE_LIST => {
            put(namespace_list(subsystem, nsid)?.as_bytes());
        }
        Cns::CSI_ACTIVE_NAMESPACE_LIST | Cns::CSI_ALLOCATED_NAMESPACE_LIST if csi == Csi::NVM => {
            put(namespace_list(subsystem, nsid)?.as_bytes());
        }
        Cns::NAMESPACE_DESCRIPTORS => put(&descriptors(admission::find(subsystem, nsid)?)),
        Cns::CSI_NAMESPACE | Cns::CSI_ALLOCATED_NAMESPACE if csi == Csi::NVM => {
            find(subsystem, nsid)?;
            put(IdentifyNvmNamespace::default().as_bytes());
        }
        // No limits beyond MDTS for the commands without data.
        Cns::CSI_CONTROLLER if csi == Csi::NVM => {
            put(IdentifyNvmController::default().as_bytes());
        }
        Cns::INDEPENDENT_NAMESPACE => {
            if let Some(namespace) = find(subsystem, nsid)? {
                put(independent_data(namespace).as_bytes());
            }
        }
        Cns::NAMESPACE_CONTROLLER_LIST => {
            admission::find(subsystem, nsid)?;
            put(controller_list(subsystem.nqn(), registry, cntid).as_bytes());
        }
        Cns::SUBSYSTEM_CONTROLLER_LIST => {
            put(controller_list(subsystem.nqn(), registry, cntid).as_bytes());
        }
        Cns::IO_COMMAND_SETS => put(IoCommandSets::nvm_only().as_bytes()),
        _ => return invalid,
    }
    Ok(())
}

/// A namespace that may be inactive: then there is no data, only zeroes.
fn find(subsystem: &Subsystem, nsid: Nsid) -> Result<Option<&Namespace>, Status> {
    match admission::find(subsystem, nsid) {
        Ok(namespace) => Ok(Some(namespace)),
        Err(status) if status.same_code(Status::INVALID_FIELD) => Ok(None),
        Err(status) => Err(status),
    }
}

fn namespace_list(subsystem: &Subsystem, after: Nsid) -> Result<NamespaceList, Status> {
    if after.0 >= Nsid::ALL.0 - 1 {
        return Err(Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr());
    }
    Ok(NamespaceList::after(after, subsystem.namespaces().iter().map(|namespace| namespace.nsid)))
}

fn controller_list(nqn: &Nqn, registry: &Registry, first: ControllerId) -> ControllerList {
    ControllerList::starting_at(first, registry.controller_ids(nqn, first))
}

fn controller_data(subsystem: &Subsystem, id: ControllerId) -> IdentifyController {
    let limits = subsystem.limits();
    let discovery = subsystem.is_discovery();
    let mut data = IdentifyController::default();
    data.set_product(subsystem.serial(), subsystem.model(), env!("CARGO_PKG_VERSION"));
    data.subnqn = subsystem.nqn().to_wire_field();
    data.mdts = limits.mdts();
    data.cntlid.set(id.0);
    data.ver.set(VERSION.0);
    data.oaes.set(feature::optional_events(subsystem));
    data.ctratt.set(HOST_ID_128 | TRAFFIC_KEEP_ALIVE);
    data.acl = ABORT_LIMIT;
    data.aerl = ASYNC_EVENT_LIMIT;
    data.lpa = LOG_ATTRIBUTES;
    data.elpe = u8::try_from(ERROR_ENTRIES - 1).unwrap_or(u8::MAX);
    data.kas.set(KEEP_ALIVE_UNITS);
    data.maxcmd.set(u16::try_from(limits.max_queue_depth.entries()).unwrap_or(u16::MAX));
    data.msdbd = 1;
    data.ofcs.set(DISCONNECT_SUPPORTED);
    if discovery {
        data.cntrltype = ControllerType::DISCOVERY.0;
        data.dctype = DIRECT_DISCOVERY;
        data.lpa = LONG_LOG_PAGES;
        data.set_in_capsule_data(0);
        data.sgls.set(SglSupport::SUPPORTED | SglSupport::KEYED | SglSupport::LONGER);
        return data;
    }
    data.cntrltype = ControllerType::IO.0;
    // Every host gets a controller of its own, over any port: without these bits Linux refuses
    // its second controller, be it another path or another host's view.
    data.cmic = Cmic::MULTI_CONTROLLER | Cmic::MULTI_PORT;
    data.frmw = ONE_FIRMWARE_SLOT;
    data.set_in_capsule_data(limits.in_capsule_bytes);
    let offsets = if limits.in_capsule_bytes > 0 { SglSupport::OFFSETS } else { 0 };
    // Linux sends its lists of ranges to deallocate in a page, whatever their number.
    data.sgls.set(SglSupport::SUPPORTED | SglSupport::KEYED | SglSupport::LONGER | offsets);
    data.sqes = 0x66;
    data.cqes = 0x44;
    data.nn.set(subsystem.max_nsid().0);
    data.oncs
        .set(Oncs::DATASET_MANAGEMENT | Oncs::WRITE_ZEROES | Oncs::SAVE_SELECT | ONCS_TIMESTAMP);
    data.vwc = FLUSH_ALL | u8::from(subsystem.has_volatile_cache());
    data
}

/// Exponent of the block size; the geometry was checked.
fn block_shift(namespace: &Namespace) -> u8 {
    u8::try_from(namespace.geometry.block_bytes.max(1).ilog2()).unwrap_or(9)
}

fn namespace_data(namespace: &Namespace) -> IdentifyNamespace {
    let geometry = &namespace.geometry;
    let mut data = IdentifyNamespace::new(geometry.capacity_blocks, block_shift(namespace));
    data.nmic = SHARED;
    data.dlfeat = if geometry.deallocate { DEALLOCATED_ZEROES } else { 0 };
    data.nsattr = if geometry.read_only { WRITE_PROTECTED } else { 0 };
    data.nguid = namespace.nguid;
    data.eui64 = namespace.eui64;
    // Below a page, files and most media read before they write, and holes cannot be punched.
    let page_blocks = (PAGE_BYTES / geometry.block_bytes.max(1)).max(1);
    let preferred = u16::try_from(page_blocks - 1).unwrap_or(0);
    data.nsfeat = OPTIMAL_SIZES;
    for field in [&mut data.npwg, &mut data.npwa, &mut data.npdg, &mut data.npda, &mut data.nows] {
        field.set(preferred);
    }
    data
}

fn independent_data(namespace: &Namespace) -> IdentifyIndependentNamespace {
    let mut data = IdentifyIndependentNamespace::default();
    data.nmic = SHARED;
    data.nsattr = if namespace.geometry.read_only { WRITE_PROTECTED } else { 0 };
    data.nstat = NAMESPACE_READY;
    data
}

fn descriptors(namespace: &Namespace) -> [u8; IDENTIFY_BYTES] {
    let mut list = NamespaceDescriptorWriter::default();
    // Four small descriptors always fit.
    let mut fits = true;
    if namespace.uuid != [0; 16] {
        fits &= list.push(&NamespaceDescriptor::Uuid(namespace.uuid));
    }
    if namespace.nguid != [0; 16] {
        fits &= list.push(&NamespaceDescriptor::Nguid(namespace.nguid));
    }
    if namespace.eui64 != [0; 8] {
        fits &= list.push(&NamespaceDescriptor::Eui64(namespace.eui64));
    }
    fits &= list.push(&NamespaceDescriptor::CommandSet(Csi::NVM));
    debug_assert!(fits);
    list.finish()
}
