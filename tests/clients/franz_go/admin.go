package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// admin lists and describes the group, sets the offsets of its topic to 1, and deletes them.
func admin(ctx context.Context) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(*servers, ",")...))
	if err != nil {
		return err
	}
	defer client.Close()
	found := map[string]any{}

	list := kmsg.NewPtrListGroupsRequest()
	list.TypesFilter = []string{"share"}
	listed, err := list.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	names := []string{}
	for _, one := range listed.Groups {
		names = append(names, one.Group)
	}
	found["listed"] = names

	describe := kmsg.NewPtrShareGroupDescribeRequest()
	describe.GroupIDs = []string{*group}
	described, err := describe.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	for _, one := range described.Groups {
		if err := kerr.ErrorForCode(one.ErrorCode); err != nil {
			return fmt.Errorf("describe: %w", err)
		}
		found["state"], found["members"] = one.GroupState, len(one.Members)
	}

	before, err := offsets(ctx, client)
	if err != nil {
		return err
	}
	found["before"] = before
	if err := alter(ctx, client, 1); err != nil {
		return err
	}
	altered, err := offsets(ctx, client)
	if err != nil {
		return err
	}
	found["altered"] = altered

	remove := kmsg.NewPtrDeleteShareGroupOffsetsRequest()
	remove.GroupID = *group
	named := kmsg.NewDeleteShareGroupOffsetsRequestTopic()
	named.Topic = *topic
	remove.Topics = append(remove.Topics, named)
	removed, err := remove.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	if err := kerr.ErrorForCode(removed.ErrorCode); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	deleted, err := offsets(ctx, client)
	if err != nil {
		return err
	}
	found["deleted"] = deleted
	return json.NewEncoder(os.Stdout).Encode(found)
}

// offsets returns the start offset of each partition.
func offsets(ctx context.Context, client *kgo.Client) (map[int32]int64, error) {
	request := kmsg.NewPtrDescribeShareGroupOffsetsRequest()
	wanted := kmsg.NewDescribeShareGroupOffsetsRequestGroup()
	wanted.GroupID = *group
	request.Groups = append(request.Groups, wanted)
	response, err := request.RequestWith(ctx, client)
	if err != nil {
		return nil, err
	}
	starts := map[int32]int64{}
	for _, one := range response.Groups {
		if err := kerr.ErrorForCode(one.ErrorCode); err != nil {
			return nil, fmt.Errorf("offsets: %w", err)
		}
		for _, ofTopic := range one.Topics {
			for _, partition := range ofTopic.Partitions {
				starts[partition.Partition] = partition.StartOffset
			}
		}
	}
	return starts, nil
}

func alter(ctx context.Context, client *kgo.Client, start int64) error {
	request := kmsg.NewPtrAlterShareGroupOffsetsRequest()
	request.GroupID = *group
	ofTopic := kmsg.NewAlterShareGroupOffsetsRequestTopic()
	ofTopic.Topic = *topic
	partition := kmsg.NewAlterShareGroupOffsetsRequestTopicPartition()
	partition.StartOffset = start
	ofTopic.Partitions = append(ofTopic.Partitions, partition)
	request.Topics = append(request.Topics, ofTopic)
	response, err := request.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	if err := kerr.ErrorForCode(response.ErrorCode); err != nil {
		return fmt.Errorf("alter: %w", err)
	}
	return nil
}
