// SPDX-License-Identifier: GPL-2.0
/*
 * Test aid: a link without a data path on each InfiniBand device, made and
 * destroyed as IPoIB does it: by a client of the RDMA core. A move of the device
 * to another network namespace removes and adds all clients, so the link is
 * another one afterwards: index, first bytes of the address, default settings.
 * It imitates a shape; it is no driver, and takes the place of ib_ipoib.
 *
 * The link is made in the first network namespace, as before Linux 6.17, or
 * with in_device_namespace=1 in that of the RDMA device, as since then.
 */
#include <linux/if_arp.h>
#include <linux/if_link.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <net/rtnetlink.h>
#include <rdma/ib_verbs.h>

#define ADDRESS_BYTES 20
#define MODE_DATAGRAM 0
#define MODE_CONNECTED 1
#define DATAGRAM_MTU 2044
#define CONNECTED_MTU 65520

struct port {
	u16 mode;
	u16 umcast;
};

static bool in_device_namespace;
module_param(in_device_namespace, bool, 0644);

static u32 last_queue_pair;

static netdev_tx_t xmit(struct sk_buff *skb, struct net_device *dev)
{
	dev_kfree_skb(skb);
	return NETDEV_TX_OK;
}

static const struct net_device_ops netdev_ops = { .ndo_start_xmit = xmit };

static void set_mode(struct net_device *dev, u16 mode)
{
	((struct port *)netdev_priv(dev))->mode = mode;
	dev->max_mtu = mode == MODE_CONNECTED ? CONNECTED_MTU : DATAGRAM_MTU;
	dev->mtu = min(dev->mtu, dev->max_mtu);
}

static int changelink(struct net_device *dev, struct nlattr *tb[], struct nlattr *data[],
		      struct netlink_ext_ack *extack)
{
	if (data && data[IFLA_IPOIB_MODE])
		set_mode(dev, nla_get_u16(data[IFLA_IPOIB_MODE]));
	if (data && data[IFLA_IPOIB_UMCAST])
		((struct port *)netdev_priv(dev))->umcast = !!nla_get_u16(data[IFLA_IPOIB_UMCAST]);
	return 0;
}

static size_t get_size(const struct net_device *dev)
{
	return 3 * nla_total_size(2);
}

static int fill_info(struct sk_buff *skb, const struct net_device *dev)
{
	const struct port *port = netdev_priv(dev);

	if (nla_put_u16(skb, IFLA_IPOIB_PKEY, 0xffff) || nla_put_u16(skb, IFLA_IPOIB_MODE, port->mode) ||
	    nla_put_u16(skb, IFLA_IPOIB_UMCAST, port->umcast))
		return -EMSGSIZE;
	return 0;
}

static const struct nla_policy policy[IFLA_IPOIB_MAX + 1] = {
	[IFLA_IPOIB_PKEY] = { .type = NLA_U16 },
	[IFLA_IPOIB_MODE] = { .type = NLA_U16 },
	[IFLA_IPOIB_UMCAST] = { .type = NLA_U16 },
};

static struct rtnl_link_ops link_ops = {
	.kind = "ipoib",
	.netns_refund = true,
	.maxtype = IFLA_IPOIB_MAX,
	.policy = policy,
	.changelink = changelink,
	.get_size = get_size,
	.fill_info = fill_info,
};

static void setup(struct net_device *dev)
{
	dev->netdev_ops = &netdev_ops;
	dev->type = ARPHRD_INFINIBAND;
	dev->addr_len = ADDRESS_BYTES;
	dev->hard_header_len = 4 + ADDRESS_BYTES;
	dev->tx_queue_len = 256;
	dev->flags = IFF_BROADCAST | IFF_MULTICAST;
	dev->min_mtu = ETH_MIN_MTU;
	dev->mtu = DATAGRAM_MTU;
	set_mode(dev, MODE_DATAGRAM);
	memset((void *)dev->broadcast, 0xff, ADDRESS_BYTES);
}

static void set_address(struct net_device *dev, struct ib_device *ib)
{
	u8 address[ADDRESS_BYTES] = { 0 };
	__be32 queue_pair = cpu_to_be32(++last_queue_pair);

	memcpy(address, &queue_pair, sizeof(queue_pair));
	address[4] = 0xfe;
	address[5] = 0x80;
	memcpy(address + 12, &ib->node_guid, sizeof(ib->node_guid));
	__dev_addr_set(dev, address, ADDRESS_BYTES);
}

static struct ib_client client;

static int add(struct ib_device *ib)
{
	struct net_device *dev;
	int err;

	if (!rdma_protocol_ib(ib, 1))
		return -EOPNOTSUPP;
	dev = alloc_netdev(sizeof(struct port), "ib%d", NET_NAME_UNKNOWN, setup);
	if (!dev)
		return -ENOMEM;
	dev->rtnl_link_ops = &link_ops;
	set_address(dev, ib);
	SET_NETDEV_DEV(dev, ib->dev.parent);
	if (in_device_namespace)
		dev_net_set(dev, read_pnet(&ib->coredev.rdma_net));
	err = register_netdev(dev);
	if (err) {
		free_netdev(dev);
		return err;
	}
	ib_set_client_data(ib, &client, dev);
	return 0;
}

static void remove(struct ib_device *ib, void *data)
{
	struct net_device *dev = data;

	unregister_netdev(dev);
	free_netdev(dev);
}

/* no_kverbs_req: vnode_hca has no verbs for the kernel. */
static struct ib_client client = {
	.name = "vnode_ipoib",
	.add = add,
	.remove = remove,
	.no_kverbs_req = true,
};

static int __init vnode_ipoib_init(void)
{
	int err = rtnl_link_register(&link_ops);

	if (err)
		return err;
	err = ib_register_client(&client);
	if (err)
		rtnl_link_unregister(&link_ops);
	return err;
}

static void __exit vnode_ipoib_exit(void)
{
	ib_unregister_client(&client);
	rtnl_link_unregister(&link_ops);
}

module_init(vnode_ipoib_init);
module_exit(vnode_ipoib_exit);
MODULE_DESCRIPTION("Test aid: links that come and go with InfiniBand devices");
MODULE_LICENSE("GPL");
