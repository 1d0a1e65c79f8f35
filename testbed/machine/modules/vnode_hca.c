// SPDX-License-Identifier: GPL-2.0
/*
 * Test aid: an RDMA device without a data path whose parent is a PCI function,
 * so that sysfs and RDMA netlink look as they do for a real adapter, and so that
 * it can move between network namespaces. It imitates a shape; it is no driver.
 *
 *   echo "NAME PCI-ADDRESS eth|ib" > /sys/kernel/vnode_hca/add
 *   echo "NAME|all"                > /sys/kernel/vnode_hca/del
 *
 * With "eth" it is paired with the function's link, if that is in the first
 * network namespace at the time. Bring a device back there before "del".
 */
#include <linux/etherdevice.h>
#include <linux/kobject.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/pci.h>
#include <net/addrconf.h>
#include <rdma/ib_addr.h>
#include <rdma/ib_verbs.h>

#define GID_TABLE 16

struct hca {
	struct ib_device ib;
	struct list_head entry;
	struct pci_dev *pdev;
	bool ethernet;
};

struct hca_ucontext { struct ib_ucontext ib; };
struct hca_pd { struct ib_pd ib; };

static LIST_HEAD(devices);
static DEFINE_MUTEX(devices_lock);

static struct hca *to_hca(struct ib_device *ib)
{
	return container_of(ib, struct hca, ib);
}

static int query_device(struct ib_device *ib, struct ib_device_attr *attr, struct ib_udata *udata)
{
	memset(attr, 0, sizeof(*attr));
	attr->sys_image_guid = ib->node_guid;
	attr->vendor_id = to_hca(ib)->pdev->vendor;
	attr->vendor_part_id = to_hca(ib)->pdev->device;
	attr->max_qp = attr->max_pd = attr->max_mr = attr->max_cq = 64;
	return 0;
}

static int query_port(struct ib_device *ib, u32 port, struct ib_port_attr *attr)
{
	bool ethernet = to_hca(ib)->ethernet;

	attr->state = IB_PORT_ACTIVE;
	attr->phys_state = IB_PORT_PHYS_STATE_LINK_UP;
	attr->max_mtu = attr->active_mtu = IB_MTU_4096;
	attr->gid_tbl_len = GID_TABLE;
	attr->pkey_tbl_len = 1;
	attr->lid = ethernet ? 0 : 5;
	attr->sm_lid = ethernet ? 0 : 1;
	attr->active_width = IB_WIDTH_4X;
	attr->active_speed = IB_SPEED_NDR;
	attr->max_msg_sz = 1 << 20;
	return 0;
}

static int query_gid(struct ib_device *ib, u32 port, int index, union ib_gid *gid)
{
	memset(gid, 0, sizeof(*gid));
	if (!index) {
		gid->global.subnet_prefix = cpu_to_be64(0xfe80000000000000ULL);
		gid->global.interface_id = ib->node_guid;
	}
	return 0;
}

static int query_pkey(struct ib_device *ib, u32 port, u16 index, u16 *pkey)
{
	*pkey = 0xffff;
	return 0;
}

static int add_gid(const struct ib_gid_attr *attr, void **context)
{
	return 0;
}

static int del_gid(const struct ib_gid_attr *attr, void **context)
{
	return 0;
}

static enum rdma_link_layer get_link_layer(struct ib_device *ib, u32 port)
{
	return to_hca(ib)->ethernet ? IB_LINK_LAYER_ETHERNET : IB_LINK_LAYER_INFINIBAND;
}

/* No capability for MADs or the connection manager: there is no data path. */
static int get_port_immutable(struct ib_device *ib, u32 port, struct ib_port_immutable *immutable)
{
	immutable->gid_tbl_len = GID_TABLE;
	immutable->pkey_tbl_len = 1;
	immutable->max_mad_size = 0;
	/* IB_CM: rdma_cm knows the device, and keeps its defaults in configfs. */
	immutable->core_cap_flags =
		to_hca(ib)->ethernet ? RDMA_CORE_CAP_PROT_ROCE_UDP_ENCAP | RDMA_CORE_CAP_IB_CM
				     : RDMA_CORE_CAP_PROT_IB;
	return 0;
}

static int alloc_ucontext(struct ib_ucontext *context, struct ib_udata *udata)
{
	return 0;
}

static void dealloc_ucontext(struct ib_ucontext *context)
{
}

static int alloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	return 0;
}

static int dealloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	return 0;
}

/*
 * What a device must have before clients of the kernel (rdma_cm) take notice of
 * it. There is no data path, so none of it works.
 */
static int create_qp(struct ib_qp *qp, struct ib_qp_init_attr *attr, struct ib_udata *udata)
{
	return -EOPNOTSUPP;
}

static int modify_qp(struct ib_qp *qp, struct ib_qp_attr *attr, int mask, struct ib_udata *udata)
{
	return -EOPNOTSUPP;
}

static int destroy_qp(struct ib_qp *qp, struct ib_udata *udata)
{
	return -EOPNOTSUPP;
}

static int post_send(struct ib_qp *qp, const struct ib_send_wr *wr, const struct ib_send_wr **bad)
{
	return -EOPNOTSUPP;
}

static int post_recv(struct ib_qp *qp, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad)
{
	return -EOPNOTSUPP;
}

static int create_cq(struct ib_cq *cq, const struct ib_cq_init_attr *attr,
		     struct uverbs_attr_bundle *attrs)
{
	return -EOPNOTSUPP;
}

static int destroy_cq(struct ib_cq *cq, struct ib_udata *udata)
{
	return -EOPNOTSUPP;
}

static int poll_cq(struct ib_cq *cq, int count, struct ib_wc *wc)
{
	return -EOPNOTSUPP;
}

static int req_notify_cq(struct ib_cq *cq, enum ib_cq_notify_flags flags)
{
	return -EOPNOTSUPP;
}

static struct ib_mr *get_dma_mr(struct ib_pd *pd, int access)
{
	return ERR_PTR(-EOPNOTSUPP);
}

static struct ib_mr *reg_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 address, int access,
				 struct ib_udata *udata)
{
	return ERR_PTR(-EOPNOTSUPP);
}

static int dereg_mr(struct ib_mr *mr, struct ib_udata *udata)
{
	return -EOPNOTSUPP;
}

static void get_dev_fw_str(struct ib_device *ib, char *text)
{
	snprintf(text, IB_FW_VERSION_NAME_MAX, "28.39.1002");
}

/* disassociate_ucontext is what the kernel wants to see before it moves a device. */
static const struct ib_device_ops hca_ops = {
	.owner = THIS_MODULE,
	.driver_id = RDMA_DRIVER_UNKNOWN,
	.uverbs_abi_ver = 1,
	.query_device = query_device,
	.query_port = query_port,
	.query_gid = query_gid,
	.query_pkey = query_pkey,
	.add_gid = add_gid,
	.del_gid = del_gid,
	.get_link_layer = get_link_layer,
	.get_port_immutable = get_port_immutable,
	.alloc_ucontext = alloc_ucontext,
	.dealloc_ucontext = dealloc_ucontext,
	.disassociate_ucontext = dealloc_ucontext,
	.alloc_pd = alloc_pd,
	.dealloc_pd = dealloc_pd,
	.get_dev_fw_str = get_dev_fw_str,
	.create_qp = create_qp,
	.modify_qp = modify_qp,
	.destroy_qp = destroy_qp,
	.post_send = post_send,
	.post_recv = post_recv,
	.create_cq = create_cq,
	.destroy_cq = destroy_cq,
	.poll_cq = poll_cq,
	.req_notify_cq = req_notify_cq,
	.get_dma_mr = get_dma_mr,
	.reg_user_mr = reg_user_mr,
	.dereg_mr = dereg_mr,
	INIT_RDMA_OBJ_SIZE(ib_ucontext, hca_ucontext, ib),
	INIT_RDMA_OBJ_SIZE(ib_pd, hca_pd, ib),
};

static struct net_device *find_netdev(struct pci_dev *pdev)
{
	struct net_device *netdev, *found = NULL;

	rtnl_lock();
	for_each_netdev(&init_net, netdev) {
		if (netdev->dev.parent == &pdev->dev) {
			found = netdev;
			dev_hold(found);
			break;
		}
	}
	rtnl_unlock();
	return found;
}

static void pair_with_netdev(struct hca *hca)
{
	struct net_device *netdev = find_netdev(hca->pdev);

	if (!netdev)
		return;
	ib_device_set_netdev(&hca->ib, netdev, 1);
	addrconf_addr_eui48((u8 *)&hca->ib.node_guid, netdev->dev_addr);
	dev_put(netdev);
}

static int add_device(const char *name, struct pci_dev *pdev, bool ethernet)
{
	struct hca *hca = ib_alloc_device(hca, ib);
	int err;

	if (!hca)
		return -ENOMEM;
	hca->pdev = pdev;
	hca->ethernet = ethernet;
	hca->ib.node_type = RDMA_NODE_IB_CA;
	hca->ib.phys_port_cnt = 1;
	hca->ib.num_comp_vectors = 1;
	hca->ib.dev.parent = &pdev->dev;
	hca->ib.node_guid = cpu_to_be64(0x0200000300000000ULL | (pdev->bus->number << 16) | pdev->devfn);
	strscpy(hca->ib.node_desc, "vnode_hca test aid", sizeof(hca->ib.node_desc));
	ib_set_device_ops(&hca->ib, &hca_ops);
	if (ethernet)
		pair_with_netdev(hca);
	err = ib_register_device(&hca->ib, name, NULL);
	if (err) {
		ib_dealloc_device(&hca->ib);
		return err;
	}
	mutex_lock(&devices_lock);
	list_add(&hca->entry, &devices);
	mutex_unlock(&devices_lock);
	return 0;
}

static ssize_t add_store(struct kobject *kobj, struct kobj_attribute *attr, const char *text, size_t count)
{
	unsigned int domain, bus, slot, function;
	char name[32], address[32], link_layer[8];
	struct pci_dev *pdev;
	int err;

	if (sscanf(text, "%31s %31s %7s", name, address, link_layer) != 3 ||
	    sscanf(address, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4)
		return -EINVAL;
	pdev = pci_get_domain_bus_and_slot(domain, bus, PCI_DEVFN(slot, function));
	if (!pdev)
		return -ENODEV;
	err = add_device(name, pdev, !strcmp(link_layer, "eth"));
	if (err)
		pci_dev_put(pdev);
	return err ? err : count;
}

static void remove_devices(const char *name)
{
	struct hca *hca, *next;

	mutex_lock(&devices_lock);
	list_for_each_entry_safe(hca, next, &devices, entry) {
		struct pci_dev *pdev = hca->pdev;

		if (strcmp(name, "all") && strcmp(name, dev_name(&hca->ib.dev)))
			continue;
		list_del(&hca->entry);
		ib_unregister_device(&hca->ib);
		ib_dealloc_device(&hca->ib);
		pci_dev_put(pdev);
	}
	mutex_unlock(&devices_lock);
}

static ssize_t del_store(struct kobject *kobj, struct kobj_attribute *attr, const char *text, size_t count)
{
	char name[32];

	if (sscanf(text, "%31s", name) != 1)
		return -EINVAL;
	remove_devices(name);
	return count;
}

static struct kobj_attribute add_attribute = __ATTR_WO(add);
static struct kobj_attribute del_attribute = __ATTR_WO(del);
static struct attribute *attributes[] = { &add_attribute.attr, &del_attribute.attr, NULL };
static const struct attribute_group group = { .attrs = attributes };
static struct kobject *folder;

static int __init vnode_hca_init(void)
{
	int err;

	folder = kobject_create_and_add("vnode_hca", kernel_kobj);
	if (!folder)
		return -ENOMEM;
	err = sysfs_create_group(folder, &group);
	if (err)
		kobject_put(folder);
	return err;
}

static void __exit vnode_hca_exit(void)
{
	kobject_put(folder);
	remove_devices("all");
}

module_init(vnode_hca_init);
module_exit(vnode_hca_exit);
MODULE_DESCRIPTION("Test aid: RDMA devices with a PCI parent and no data path");
MODULE_LICENSE("GPL");
