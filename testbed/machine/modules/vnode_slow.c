// SPDX-License-Identifier: GPL-2.0
/*
 * Test aid: NICs without a data path that take their time to open and to close,
 * as those do whose queues are objects of the firmware. Each is a PCI function
 * with a driver, on a root bus of the module's own (domain 0001), so the kernel
 * takes it for hardware. It imitates a shape; it is no driver.
 *
 *   modprobe vnode_slow nics=8 open_ms=250 stop_ms=250
 *   cat /sys/module/vnode_slow/parameters/{opens,stops}
 *
 * The two lists tell how often each NIC was opened and closed, by the slot of
 * its function, in whatever network namespace it is.
 */
#include <linux/delay.h>
#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/pci.h>

#define MOST_NICS 16
#define DOMAIN 1
#define VENDOR 0x1b36 /* Red Hat's, for what no hardware is */
#define DEVICE 0x51a0

static int nics = 8, open_ms = 250, stop_ms = 250;
static int opens[MOST_NICS], stops[MOST_NICS];

module_param(nics, int, 0444);
module_param(open_ms, int, 0644);
module_param(stop_ms, int, 0644);
module_param_array(opens, int, NULL, 0444);
module_param_array(stops, int, NULL, 0444);

static int slot_of(struct net_device *dev)
{
	return PCI_SLOT(to_pci_dev(dev->dev.parent)->devfn);
}

/* The kernel calls both under RTNL. */
static int slow_open(struct net_device *dev)
{
	msleep(open_ms);
	opens[slot_of(dev)]++;
	netif_start_queue(dev);
	netif_carrier_on(dev);
	return 0;
}

static int slow_stop(struct net_device *dev)
{
	netif_carrier_off(dev);
	netif_stop_queue(dev);
	msleep(stop_ms);
	stops[slot_of(dev)]++;
	return 0;
}

static netdev_tx_t slow_xmit(struct sk_buff *skb, struct net_device *dev)
{
	dev_kfree_skb(skb);
	return NETDEV_TX_OK;
}

static const struct net_device_ops netdev_ops = {
	.ndo_open = slow_open,
	.ndo_stop = slow_stop,
	.ndo_start_xmit = slow_xmit,
	.ndo_set_mac_address = eth_mac_addr,
	.ndo_validate_addr = eth_validate_addr,
};

static const struct ethtool_ops ethtool_ops = {
	.get_link = ethtool_op_get_link,
};

static int probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	const u8 mac[ETH_ALEN] = { 0x06, 0x51, 0x0e, 0, 0, PCI_SLOT(pdev->devfn) };
	struct net_device *dev = alloc_etherdev(0);
	int err;

	if (!dev)
		return -ENOMEM;
	SET_NETDEV_DEV(dev, &pdev->dev);
	dev->netdev_ops = &netdev_ops;
	dev->ethtool_ops = &ethtool_ops;
	dev->max_mtu = 9000;
	eth_hw_addr_set(dev, mac);
	snprintf(dev->name, IFNAMSIZ, "slow%d", PCI_SLOT(pdev->devfn));
	netif_carrier_off(dev);
	err = register_netdev(dev);
	if (err) {
		free_netdev(dev);
		return err;
	}
	pci_set_drvdata(pdev, dev);
	return 0;
}

static void remove(struct pci_dev *pdev)
{
	struct net_device *dev = pci_get_drvdata(pdev);

	unregister_netdev(dev);
	free_netdev(dev);
}

static const struct pci_device_id ids[] = { { PCI_DEVICE(VENDOR, DEVICE) }, {} };

static struct pci_driver driver = {
	.name = "vnode_slow",
	.id_table = ids,
	.probe = probe,
	.remove = remove,
};

/* The header of an Ethernet controller without memory, interrupt and capabilities. */
static u32 header_word(int where)
{
	switch (where) {
	case PCI_VENDOR_ID:
		return DEVICE << 16 | VENDOR;
	case PCI_CLASS_REVISION:
		return PCI_CLASS_NETWORK_ETHERNET << 16;
	default:
		return 0;
	}
}

static int config_read(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 *value)
{
	if (PCI_FUNC(devfn) || PCI_SLOT(devfn) >= nics) {
		*value = ~0U;
		return PCIBIOS_DEVICE_NOT_FOUND;
	}
	*value = header_word(where & ~3) >> 8 * (where & 3);
	if (size < 4)
		*value &= (1U << 8 * size) - 1;
	return PCIBIOS_SUCCESSFUL;
}

static int config_write(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 value)
{
	return PCIBIOS_SUCCESSFUL;
}

static struct pci_ops config = { .read = config_read, .write = config_write };
static struct pci_sysdata sysdata = { .domain = DOMAIN, .node = NUMA_NO_NODE };
static struct pci_bus *root;

static int __init vnode_slow_init(void)
{
	LIST_HEAD(resources);
	int err;

	if (nics < 1 || nics > MOST_NICS)
		return -EINVAL;
	err = pci_register_driver(&driver);
	if (err)
		return err;
	pci_lock_rescan_remove();
	root = pci_scan_root_bus(NULL, 0, &config, &sysdata, &resources);
	if (root)
		pci_bus_add_devices(root);
	pci_unlock_rescan_remove();
	if (!root) {
		pci_unregister_driver(&driver);
		return -ENODEV;
	}
	return 0;
}

static void __exit vnode_slow_exit(void)
{
	pci_lock_rescan_remove();
	pci_stop_root_bus(root);
	pci_remove_root_bus(root);
	pci_unlock_rescan_remove();
	pci_unregister_driver(&driver);
}

module_init(vnode_slow_init);
module_exit(vnode_slow_exit);
MODULE_DESCRIPTION("Test aid: NICs that open and close slowly");
MODULE_LICENSE("GPL");
