//===- TextTrie.h - Strings found by their beginnings ---------------------===//

#ifndef BUDDY_TEXTTRIE_H
#define BUDDY_TEXTTRIE_H

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace buddy {

/// A set of strings with a number each. One step along a text costs a look into a hash table.
class Trie {
public:
  using Node = std::uint32_t;
  static constexpr Node root = 0, nowhere = 0xffffffff;

  /// The number of a string that is there already, else `value` (at least 0).
  std::int32_t insert(std::string_view key, std::int32_t value) {
    Node node = root;
    for (const char c : key)
      node = child(node, c);
    if (values[node] < 0)
      values[node] = value;
    return values[node];
  }

  bool empty() const { return values.size() == 1; }
  Node step(Node node, char c) const {
    const Edge &edge = edges[slotOf(edges, keyOf(node, c))];
    return edge.target;
  }
  /// The number of the string that ends at `node`, or -1.
  std::int32_t value(Node node) const { return values[node]; }

  struct Match {
    std::size_t length = 0;
    std::int32_t value = -1; // -1: none
  };
  Match longestAt(std::string_view text, std::size_t begin) const {
    Match longest;
    Node node = root;
    for (std::size_t i = begin; i < text.size(); ++i) {
      node = step(node, text[i]);
      if (node == nowhere)
        break;
      if (values[node] >= 0)
        longest = {i + 1 - begin, values[node]};
    }
    return longest;
  }

private:
  struct Edge {
    std::uint64_t key = 0; // 0: empty
    Node target = nowhere;
  };
  static std::uint64_t keyOf(Node node, char c) {
    return std::uint64_t{node} << 9 | 256 | static_cast<std::uint8_t>(c);
  }
  static std::size_t slotOf(const std::vector<Edge> &table, std::uint64_t key) {
    const std::uint64_t mixed = key * 0x9e3779b97f4a7c15ULL; // Fibonacci hashing
    std::size_t slot = static_cast<std::size_t>(mixed >> 20) & (table.size() - 1);
    while (table[slot].key != 0 && table[slot].key != key)
      slot = (slot + 1) & (table.size() - 1);
    return slot;
  }
  Node child(Node node, char c) {
    const std::uint64_t key = keyOf(node, c);
    std::size_t slot = slotOf(edges, key);
    if (edges[slot].key == key)
      return edges[slot].target;
    if (values.size() * 2 > edges.size()) {
      std::vector<Edge> larger(edges.size() * 2);
      for (const Edge &edge : edges)
        if (edge.key != 0)
          larger[slotOf(larger, edge.key)] = edge;
      edges.swap(larger);
      slot = slotOf(edges, key);
    }
    const auto added = static_cast<Node>(values.size());
    edges[slot] = {key, added};
    values.push_back(-1);
    return added;
  }

  std::vector<Edge> edges = std::vector<Edge>(16);
  std::vector<std::int32_t> values = std::vector<std::int32_t>(1, -1);
};

} // namespace buddy

#endif // BUDDY_TEXTTRIE_H
