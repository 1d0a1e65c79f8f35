// SPDX-License-Identifier: GPL-2.0
/*
 * Test aid: an Ethernet link without a data path that has every setting of
 * ethtool which no driver of the machine's other cards has: it keeps what it is
 * told and tells it again. It imitates a shape; it is no driver.
 *
 *   ip link add NAME type vnode_nic
 */
#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <net/rtnetlink.h>

#define MOST_DESCRIPTORS 4096
#define MOST_CHANNELS 8

struct nic {
	struct ethtool_ringparam ring;
	struct ethtool_channels channels;
	struct ethtool_coalesce coalesce;
};

static netdev_tx_t xmit(struct sk_buff *skb, struct net_device *dev)
{
	dev_kfree_skb(skb);
	return NETDEV_TX_OK;
}

static void get_ringparam(struct net_device *dev, struct ethtool_ringparam *ring,
			  struct kernel_ethtool_ringparam *kernel, struct netlink_ext_ack *extack)
{
	*ring = ((struct nic *)netdev_priv(dev))->ring;
}

static int set_ringparam(struct net_device *dev, struct ethtool_ringparam *ring,
			 struct kernel_ethtool_ringparam *kernel, struct netlink_ext_ack *extack)
{
	((struct nic *)netdev_priv(dev))->ring = *ring;
	return 0;
}

static void get_channels(struct net_device *dev, struct ethtool_channels *channels)
{
	*channels = ((struct nic *)netdev_priv(dev))->channels;
}

static int set_channels(struct net_device *dev, struct ethtool_channels *channels)
{
	((struct nic *)netdev_priv(dev))->channels = *channels;
	return 0;
}

static int get_coalesce(struct net_device *dev, struct ethtool_coalesce *coalesce,
			struct kernel_ethtool_coalesce *kernel, struct netlink_ext_ack *extack)
{
	*coalesce = ((struct nic *)netdev_priv(dev))->coalesce;
	return 0;
}

static int set_coalesce(struct net_device *dev, struct ethtool_coalesce *coalesce,
			struct kernel_ethtool_coalesce *kernel, struct netlink_ext_ack *extack)
{
	((struct nic *)netdev_priv(dev))->coalesce = *coalesce;
	return 0;
}

static const struct net_device_ops netdev_ops = {
	.ndo_start_xmit = xmit,
	.ndo_set_mac_address = eth_mac_addr,
	.ndo_validate_addr = eth_validate_addr,
};

static const struct ethtool_ops ethtool_ops = {
	.supported_coalesce_params = ETHTOOL_COALESCE_USECS | ETHTOOL_COALESCE_MAX_FRAMES |
				     ETHTOOL_COALESCE_USE_ADAPTIVE,
	.get_link = ethtool_op_get_link,
	.get_ringparam = get_ringparam,
	.set_ringparam = set_ringparam,
	.get_channels = get_channels,
	.set_channels = set_channels,
	.get_coalesce = get_coalesce,
	.set_coalesce = set_coalesce,
};

static void setup(struct net_device *dev)
{
	struct nic *nic = netdev_priv(dev);

	ether_setup(dev);
	dev->netdev_ops = &netdev_ops;
	dev->ethtool_ops = &ethtool_ops;
	dev->needs_free_netdev = true;
	eth_hw_addr_random(dev);
	nic->ring = (struct ethtool_ringparam){
		.rx_max_pending = MOST_DESCRIPTORS, .rx_pending = 256,
		.rx_mini_max_pending = MOST_DESCRIPTORS, .rx_mini_pending = 256,
		.rx_jumbo_max_pending = MOST_DESCRIPTORS, .rx_jumbo_pending = 256,
		.tx_max_pending = MOST_DESCRIPTORS, .tx_pending = 256,
	};
	nic->channels = (struct ethtool_channels){
		.max_combined = MOST_CHANNELS, .combined_count = 4,
		.max_other = MOST_CHANNELS, .other_count = 1,
	};
	nic->coalesce.rx_coalesce_usecs = nic->coalesce.tx_coalesce_usecs = 3;
}

static struct rtnl_link_ops link_ops = {
	.kind = "vnode_nic",
	.priv_size = sizeof(struct nic),
	.setup = setup,
};

static int __init vnode_nic_init(void)
{
	return rtnl_link_register(&link_ops);
}

static void __exit vnode_nic_exit(void)
{
	rtnl_link_unregister(&link_ops);
}

module_init(vnode_nic_init);
module_exit(vnode_nic_exit);
MODULE_ALIAS_RTNL_LINK("vnode_nic");
MODULE_DESCRIPTION("Test aid: a link with every number that ethtool sets");
MODULE_LICENSE("GPL");
