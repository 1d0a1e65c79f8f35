// SPDX-License-Identifier: GPL-2.0
/*
 * Test aid: an Ethernet link without a data path that has every setting of
 * ethtool and dcb which no driver of the machine's other cards has: it keeps
 * what it is told and tells it again. Like mlx5 it sets the CPUs of its queues
 * (XPS) anew each time it is opened. It imitates a shape; it is no driver.
 *
 *   ip link add NAME [numtxqueues N] type vnode_nic
 */
#include <linux/cpumask.h>
#include <linux/dcbnl.h>
#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/linkmode.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <net/dcbnl.h>
#include <net/rtnetlink.h>

#define MOST_DESCRIPTORS 4096
#define MOST_CHANNELS 8
#define TABLE_ENTRIES 128
#define KEY_BYTES 40
#define MOST_CONTEXTS 8
#define MOST_RULES 16
#define HASH_FLOWS (AH_ESP_V6_FLOW + 1)

struct nic {
	struct ethtool_pauseparam pause;
	struct ethtool_fecparam fec;
	struct ethtool_keee eee;
	u32 table[TABLE_ENTRIES];
	u8 key[KEY_BYTES];
	u8 hash_function;
	u32 hash_fields[HASH_FLOWS];
	bool has_rule[MOST_RULES];
	struct ethtool_rx_flow_spec rules[MOST_RULES];
	u32 rule_contexts[MOST_RULES];
	struct ieee_ets ets;
	struct ieee_pfc pfc;
	struct ieee_maxrate maxrate;
	u8 dcbx;
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

static void spread(struct nic *nic)
{
	u32 i;

	for (i = 0; i < TABLE_ENTRIES; i++)
		nic->table[i] = ethtool_rxfh_indir_default(i, nic->channels.combined_count);
}

static int set_channels(struct net_device *dev, struct ethtool_channels *channels)
{
	struct nic *nic = netdev_priv(dev);

	nic->channels = *channels;
	if (!netif_is_rxfh_configured(dev))
		spread(nic);
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

static void get_pauseparam(struct net_device *dev, struct ethtool_pauseparam *pause)
{
	*pause = ((struct nic *)netdev_priv(dev))->pause;
}

static int set_pauseparam(struct net_device *dev, struct ethtool_pauseparam *pause)
{
	((struct nic *)netdev_priv(dev))->pause = *pause;
	return 0;
}

static int get_fecparam(struct net_device *dev, struct ethtool_fecparam *fec)
{
	*fec = ((struct nic *)netdev_priv(dev))->fec;
	return 0;
}

static int set_fecparam(struct net_device *dev, struct ethtool_fecparam *fec)
{
	((struct nic *)netdev_priv(dev))->fec.fec = fec->fec;
	return 0;
}

static int get_eee(struct net_device *dev, struct ethtool_keee *eee)
{
	*eee = ((struct nic *)netdev_priv(dev))->eee;
	return 0;
}

static int set_eee(struct net_device *dev, struct ethtool_keee *eee)
{
	struct nic *nic = netdev_priv(dev);

	linkmode_copy(nic->eee.advertised, eee->advertised);
	nic->eee.eee_enabled = eee->eee_enabled;
	nic->eee.tx_lpi_enabled = eee->tx_lpi_enabled;
	nic->eee.tx_lpi_timer = eee->tx_lpi_timer;
	return 0;
}

/* --- RSS: the main table here, the contexts are kept by the kernel --- */

static u32 get_key_size(struct net_device *dev)
{
	return KEY_BYTES;
}

static u32 get_table_size(struct net_device *dev)
{
	return TABLE_ENTRIES;
}

static int get_rxfh(struct net_device *dev, struct ethtool_rxfh_param *rxfh)
{
	struct nic *nic = netdev_priv(dev);

	rxfh->hfunc = nic->hash_function;
	if (rxfh->indir)
		memcpy(rxfh->indir, nic->table, sizeof(nic->table));
	if (rxfh->key)
		memcpy(rxfh->key, nic->key, sizeof(nic->key));
	return 0;
}

static int set_rxfh(struct net_device *dev, struct ethtool_rxfh_param *rxfh,
		    struct netlink_ext_ack *extack)
{
	struct nic *nic = netdev_priv(dev);

	if (rxfh->hfunc != ETH_RSS_HASH_NO_CHANGE)
		nic->hash_function = rxfh->hfunc;
	if (rxfh->indir)
		memcpy(nic->table, rxfh->indir, sizeof(nic->table));
	if (rxfh->key)
		memcpy(nic->key, rxfh->key, sizeof(nic->key));
	return 0;
}

static int create_context(struct net_device *dev, struct ethtool_rxfh_context *context,
			  const struct ethtool_rxfh_param *rxfh, struct netlink_ext_ack *extack)
{
	struct nic *nic = netdev_priv(dev);

	if (!rxfh->indir)
		memcpy(ethtool_rxfh_context_indir(context), nic->table, sizeof(nic->table));
	if (!rxfh->key)
		memcpy(ethtool_rxfh_context_key(context), nic->key, sizeof(nic->key));
	if (rxfh->hfunc == ETH_RSS_HASH_NO_CHANGE)
		context->hfunc = nic->hash_function;
	return 0;
}

static int modify_context(struct net_device *dev, struct ethtool_rxfh_context *context,
			  const struct ethtool_rxfh_param *rxfh, struct netlink_ext_ack *extack)
{
	return 0;
}

static int remove_context(struct net_device *dev, struct ethtool_rxfh_context *context,
			  u32 rss_context, struct netlink_ext_ack *extack)
{
	return 0;
}

/* --- flow rules and hash fields --- */

static int get_rxnfc(struct net_device *dev, struct ethtool_rxnfc *info, u32 *locations)
{
	struct nic *nic = netdev_priv(dev);
	u32 at = info->fs.location, count = 0, i;

	switch (info->cmd) {
	case ETHTOOL_GRXRINGS:
		info->data = nic->channels.combined_count;
		return 0;
	case ETHTOOL_GRXFH:
		if (info->flow_type >= HASH_FLOWS || !info->flow_type)
			return -EINVAL;
		info->data = nic->hash_fields[info->flow_type];
		return 0;
	case ETHTOOL_GRXCLSRULE:
		if (at >= MOST_RULES || !nic->has_rule[at])
			return -ENOENT;
		info->fs = nic->rules[at];
		if (info->fs.flow_type & FLOW_RSS)
			info->rss_context = nic->rule_contexts[at];
		return 0;
	case ETHTOOL_GRXCLSRLCNT:
	case ETHTOOL_GRXCLSRLALL:
		for (i = 0; i < MOST_RULES; i++) {
			if (!nic->has_rule[i])
				continue;
			if (locations && count < info->rule_cnt)
				locations[count] = i;
			count++;
		}
		info->rule_cnt = count;
		info->data = MOST_RULES;
		return 0;
	}
	return -EOPNOTSUPP;
}

static int set_rxnfc(struct net_device *dev, struct ethtool_rxnfc *info)
{
	struct nic *nic = netdev_priv(dev);
	u32 at = info->fs.location;

	if (info->cmd == ETHTOOL_SRXFH) {
		if (info->flow_type >= HASH_FLOWS || !info->flow_type)
			return -EINVAL;
		nic->hash_fields[info->flow_type] = info->data;
		return 0;
	}
	if (at >= MOST_RULES)
		return -ENOSPC;
	if (info->cmd == ETHTOOL_SRXCLSRLDEL) {
		if (!nic->has_rule[at])
			return -ENOENT;
		nic->has_rule[at] = false;
		return 0;
	}
	if (info->cmd != ETHTOOL_SRXCLSRLINS)
		return -EOPNOTSUPP;
	nic->has_rule[at] = true;
	nic->rules[at] = info->fs;
	nic->rule_contexts[at] = info->rss_context;
	return 0;
}

/* --- DCB; the kernel keeps the APP table --- */

static int ieee_getets(struct net_device *dev, struct ieee_ets *ets)
{
	*ets = ((struct nic *)netdev_priv(dev))->ets;
	return 0;
}

static int ieee_setets(struct net_device *dev, struct ieee_ets *ets)
{
	struct nic *nic = netdev_priv(dev);
	u8 most = nic->ets.ets_cap;

	nic->ets = *ets;
	nic->ets.ets_cap = most;
	return 0;
}

static int ieee_getpfc(struct net_device *dev, struct ieee_pfc *pfc)
{
	*pfc = ((struct nic *)netdev_priv(dev))->pfc;
	return 0;
}

static int ieee_setpfc(struct net_device *dev, struct ieee_pfc *pfc)
{
	struct nic *nic = netdev_priv(dev);

	nic->pfc.pfc_en = pfc->pfc_en;
	nic->pfc.mbc = pfc->mbc;
	nic->pfc.delay = pfc->delay;
	nic->pfc.requests[0]++; /* a counter, which nothing restores */
	return 0;
}

static int ieee_getmaxrate(struct net_device *dev, struct ieee_maxrate *maxrate)
{
	*maxrate = ((struct nic *)netdev_priv(dev))->maxrate;
	return 0;
}

static int ieee_setmaxrate(struct net_device *dev, struct ieee_maxrate *maxrate)
{
	((struct nic *)netdev_priv(dev))->maxrate = *maxrate;
	return 0;
}

static u8 getdcbx(struct net_device *dev)
{
	return ((struct nic *)netdev_priv(dev))->dcbx;
}

static u8 setdcbx(struct net_device *dev, u8 mode)
{
	if (!(mode & DCB_CAP_DCBX_VER_IEEE))
		return 1;
	((struct nic *)netdev_priv(dev))->dcbx = mode;
	return 0;
}

static const struct dcbnl_rtnl_ops dcbnl_ops = {
	.ieee_getets = ieee_getets,
	.ieee_setets = ieee_setets,
	.ieee_getpfc = ieee_getpfc,
	.ieee_setpfc = ieee_setpfc,
	.ieee_getmaxrate = ieee_getmaxrate,
	.ieee_setmaxrate = ieee_setmaxrate,
	.getdcbx = getdcbx,
	.setdcbx = setdcbx,
};

static int open(struct net_device *dev)
{
	unsigned int queue;

	for (queue = 0; dev->real_num_tx_queues > 1 && queue < dev->real_num_tx_queues; queue++)
		netif_set_xps_queue(dev, cpumask_of(0), queue);
	return 0;
}

static const struct net_device_ops netdev_ops = {
	.ndo_open = open,
	.ndo_start_xmit = xmit,
	.ndo_set_mac_address = eth_mac_addr,
	.ndo_validate_addr = eth_validate_addr,
};

static const struct ethtool_ops ethtool_ops = {
	.supported_coalesce_params = ETHTOOL_COALESCE_USECS | ETHTOOL_COALESCE_MAX_FRAMES |
				     ETHTOOL_COALESCE_USE_ADAPTIVE,
	.rxfh_per_ctx_key = 1,
	.cap_rss_ctx_supported = 1,
	.rxfh_max_num_contexts = MOST_CONTEXTS,
	.get_link = ethtool_op_get_link,
	.get_pauseparam = get_pauseparam,
	.set_pauseparam = set_pauseparam,
	.get_fecparam = get_fecparam,
	.set_fecparam = set_fecparam,
	.get_eee = get_eee,
	.set_eee = set_eee,
	.get_rxfh_key_size = get_key_size,
	.get_rxfh_indir_size = get_table_size,
	.get_rxfh = get_rxfh,
	.set_rxfh = set_rxfh,
	.create_rxfh_context = create_context,
	.modify_rxfh_context = modify_context,
	.remove_rxfh_context = remove_context,
	.get_rxnfc = get_rxnfc,
	.set_rxnfc = set_rxnfc,
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
	u32 i;

	ether_setup(dev);
	dev->netdev_ops = &netdev_ops;
	dev->ethtool_ops = &ethtool_ops;
	dev->dcbnl_ops = &dcbnl_ops;
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
	nic->pause.rx_pause = nic->pause.tx_pause = 1;
	nic->fec.fec = ETHTOOL_FEC_AUTO;
	nic->fec.active_fec = ETHTOOL_FEC_RS;
	linkmode_set_bit(ETHTOOL_LINK_MODE_100baseT_Full_BIT, nic->eee.supported);
	linkmode_set_bit(ETHTOOL_LINK_MODE_1000baseT_Full_BIT, nic->eee.supported);
	linkmode_copy(nic->eee.advertised, nic->eee.supported);
	nic->eee.eee_enabled = true;
	nic->hash_function = ETH_RSS_HASH_TOP;
	memset(nic->key, 0x6d, sizeof(nic->key));
	spread(nic);
	for (i = 0; i < HASH_FLOWS; i++)
		nic->hash_fields[i] = RXH_IP_SRC | RXH_IP_DST;
	nic->ets.ets_cap = nic->pfc.pfc_cap = IEEE_8021QAZ_MAX_TCS;
	nic->dcbx = DCB_CAP_DCBX_HOST | DCB_CAP_DCBX_VER_IEEE;
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
MODULE_DESCRIPTION("Test aid: a link with every setting of ethtool and dcb");
MODULE_LICENSE("GPL");
