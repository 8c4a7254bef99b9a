#!/bin/sh
# A service in a shell: one order, the same order again, and something that is no message.
set -e
nats pub -J agent.v1.default.desk.order-17.ext.crm '{"order": 17}' -H Nats-Msg-Id:order-17
nats pub -J agent.v1.default.desk.order-17.ext.crm '{"order": 17}' -H Nats-Msg-Id:order-17
nats pub -J agent.v1.default.desk.order-17.ext.crm 'no message'
