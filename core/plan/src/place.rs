//! Which CPUs a node is pinned to.

/// What placement looks at: never the mode, so that every mode gets the same placement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Demand {
    pub cores: u32,
    pub speed_ppm: u64,
}

/// CPUs of each node, ascending; a node's cores get different CPUs, and all CPUs where there are more cores than those.
///
/// Nodes are taken by falling demand (cores * speed; equal ones in the order given) and each gets the CPUs with
/// the least demand so far (equal ones by number). When all speeds are 1 and there are enough CPUs, every core
/// is alone, because some CPU without demand is always left.
pub(crate) fn place(nodes: &[Demand], cpus: &[u32]) -> Vec<Vec<u32>> {
    let mut order: Vec<usize> = (0..nodes.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(u64::from(nodes[i].cores) * nodes[i].speed_ppm));
    let mut load: Vec<(u64, u32)> = cpus.iter().map(|&cpu| (0, cpu)).collect();
    let mut placed = vec![Vec::new(); nodes.len()];
    for i in order {
        load.sort_unstable();
        let on = load.len().min(nodes[i].cores as usize) as u64;
        for (demand, cpu) in load.iter_mut().take(on as usize) {
            *demand += (u64::from(nodes[i].cores) * nodes[i].speed_ppm).div_ceil(on);
            placed[i].push(*cpu);
        }
        placed[i].sort_unstable();
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demands(list: &[(u32, u64)]) -> Vec<Demand> {
        list.iter().map(|&(cores, percent)| Demand { cores, speed_ppm: percent * 10_000 }).collect()
    }

    #[test]
    fn the_web_tier_is_balanced_over_two_cpus() {
        let nodes = demands(&[(1, 10), (1, 10), (1, 10), (1, 15), (1, 15), (1, 15), (1, 15), (1, 20)]);
        let placed = place(&nodes, &[0, 1]);
        let sum = |cpu| -> u64 {
            nodes.iter().zip(&placed).filter(|(_, p)| p.contains(&cpu)).map(|(n, _)| n.speed_ppm).sum()
        };
        assert_eq!((sum(0), sum(1)), (550_000, 550_000));
    }

    #[test]
    fn cores_of_a_node_are_on_different_cpus() {
        let placed = place(&demands(&[(1, 50), (3, 20), (2, 30)]), &[2, 5, 7]);
        assert_eq!(placed[1], [2, 5, 7]);
        assert_eq!(placed[2].len(), 2);
        assert_ne!(placed[2][0], placed[2][1]);
    }

    #[test]
    fn more_cores_than_cpus_are_on_all_of_them() {
        let placed = place(&demands(&[(8, 10), (1, 30), (1, 30)]), &[3, 4]);
        assert_eq!(placed, [vec![3, 4], vec![3], vec![4]]);
    }

    #[test]
    fn full_cores_are_alone_while_there_are_enough() {
        let placed = place(&demands(&[(1, 100), (2, 100), (1, 100)]), &[0, 1, 2, 3]);
        let mut all: Vec<u32> = placed.concat();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3]);
    }
}
